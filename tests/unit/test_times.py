"""Times as benchmarks write them, in the one form that services take."""

import pytest

from memtrials.systems.times import iso_time

READ = {
    "2023/05/30 (Tue) 23:40": "2023-05-30T23:40:00Z",
    "2023/05/30 (Fri) 23:40": "2023-05-30T23:40:00Z",
    "2023/05/30 23:40": "2023-05-30T23:40:00Z",
    " 2024/03/02 (Sat) 08:05 ": "2024-03-02T08:05:00Z",
    "1:56 pm on 8 May, 2023": "2023-05-08T13:56:00Z",
    "12:05 am on 1 January, 2024": "2024-01-01T00:05:00Z",
    "12:30 PM on 9 june, 2023": "2023-06-09T12:30:00Z",
    "9:07 am on 03 Sep, 2022": "2022-09-03T09:07:00Z",
    "2023-05-30T23:40:00.900+02:00": "2023-05-30T21:40:00Z",
    "2026-11-30T12:00:00Z": "2026-11-30T12:00:00Z",
    "2026-11-30T12:00:00": "2026-11-30T12:00:00Z",
}

UNREAD = ("", "yesterday", "2023/13/01 (Mon) 10:00", "13:05 pm on 1 May, 2023", "0:05 am on 1 May, 2023")
UNREAD += ("1:56 pm on 8 Mai, 2023", "1:56 pm on 31 April, 2023", "2023/05/30 (Tue) 24:40", "20230530")


@pytest.mark.parametrize("text", READ)
def test_a_time_in_a_known_form_is_read(text: str):
    assert iso_time(text) == READ[text]


@pytest.mark.parametrize("text", UNREAD)
def test_any_other_text_is_an_error_that_quotes_it(text: str):
    with pytest.raises(ValueError, match=r"is no time in a known form") as error:
        iso_time(text)
    assert repr(text) in str(error.value)
