"""An embedded memory over a life: episodes, observations, what is derived from them, and what became of each.

`identity` names things, `objects` says what they are, `store` keeps them in one file, `memory` writes them, `retrieval`
finds them. `plugin` makes a memory system of it; `timelines` and `lives` say what sessions and events write.
"""
