from soong.shared.sandbox.process import TAIL_BYTES, OutputTranscript
from soong.shared.sandbox.redact import redactor

SECRET = "canary-secret-value"


def make_transcript(max_bytes: int = 1_000_000, *secrets: str) -> OutputTranscript:
    return OutputTranscript(max_bytes, redactor(secrets))


def test_what_fits_is_kept_whole_with_bytes_that_are_no_text() -> None:
    transcript = make_transcript()
    transcript.hear("stdout", b"caf\xc3")
    transcript.hear("stdout", b"\xa9 \xff\n")
    transcript.hear("stderr", b"log")

    assert transcript.raw("stdout") == "café \udcff\n"
    assert transcript.shown("stdout") == "café \ufffd\n"
    assert (transcript.said, transcript.is_cut()) == ({"stdout": 8, "stderr": 3}, False)


def test_what_exceeds_the_limit_by_no_more_than_the_ring_is_still_whole() -> None:
    transcript = make_transcript(10)
    transcript.hear("stdout", b"x" * 10 + b"y" * TAIL_BYTES)

    assert transcript.raw("stdout") == "x" * 10 + "y" * TAIL_BYTES


def test_of_a_flood_the_beginning_and_the_end_are_kept() -> None:
    transcript = make_transcript(100_000)
    for number in range(200_000):
        transcript.hear("stdout", f"line {number}\n".encode())

    text = transcript.shown("stdout")
    assert transcript.is_cut()
    assert text.startswith("line 0\n")
    assert text.endswith("line 199999\n")
    assert f"some {transcript.left_out('stdout')} bytes left out" in text
    assert len(text) < 400_000


def test_only_whole_lines_are_reported_as_progress() -> None:
    transcript = make_transcript()
    for piece in (b"one\ntwo\n", b"half a secr"):
        transcript.hear("stdout", piece)

    assert transcript.last_lines("stdout", 5, 100) == ["one", "two"]
    transcript.hear("stdout", b"et\r")
    assert transcript.last_lines("stdout", 2, 100) == ["two", "half a secret"]
    assert transcript.last_lines("stderr", 5, 100) == []


def test_a_line_of_progress_is_inert_and_bounded() -> None:
    transcript = make_transcript()
    transcript.hear("stdout", b"\x1b[31m" + b"r" * 500 + b"\x1b]52;c;x\x07\n")

    assert transcript.last_lines("stdout", 5, 100) == ["r" * 100]
