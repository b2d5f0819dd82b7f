# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "backoff==2.2.1",
#   "bpe-openai==0.1.4",
#   "click==8.5.1",
#   "filelock==4.3.1",
#   "httpx2==2.16.2",
#   "msgspec==0.23.0",
#   "nltk==3.10.0",
#   "numpy==2.4.6",
#   "openai[aiohttp]==3.57.0",
#   "orjson==3.13.0",
#   "platformdirs==4.14.9",
#   "python-dotenv==1.2.4",
#   "python-ulid==4.1.0",
#   "rich==15.0.0",
#   "scipy==1.17.1",
#   "tiktoken==0.14.0",
#   "wordllama==0.4.0.post1",
# ]
#
# [tool.uv]
# exclude-newer = "2026-11-30T00:00:00Z"
# ///
"""The stage `fetch`: `uv run src/fetch.py --help`."""

import sys

if __name__ == "__main__":
    from memtrials.cli import main

    main(["fetch", *sys.argv[1:]])
