"""The door: whatever a command's flags reject is one line on stderr and exit code 2, like every other error."""

import pytest

from echo_sched import cli

LOAD = "bench load --base-url http://127.0.0.1:9 --dataset-path prompts.jsonl"
COMPARE = "bench compare --dataset-path prompts.jsonl --output out.json"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("serve --policy bogus", "argument --policy: invalid choice: 'bogus'"),
        ("serve --k-max many", "argument --k-max: invalid int value: 'many'"),
        ("serve --k-maxx 3", "unrecognized arguments: --k-maxx 3"),
        ("serve --port", "argument --port: expected one argument"),
        ("calibrate", "the following arguments are required: --out"),
        ("calibrate data.jsonl --out p.json --policy echo", "unrecognized arguments: --policy echo"),
        (f"{LOAD} --endpoint soap", "argument --endpoint: invalid choice: 'soap'"),
        (f"{LOAD} --output a --save-result", "not allowed with argument --output"),
        (f"{LOAD} --metadata words", "--metadata takes KEY=VALUE"),
        (f"{COMPARE} --concurrency 0", "argument --concurrency: must be a whole number of at least 1, got '0'"),
        (f"{COMPARE} --gate never", "argument --gate: invalid choice: 'never'"),
        ("fetch one two", "unrecognized arguments: two"),
    ],
)
def test_rejected_flags_are_one_line_that_says_where_help_is(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    captured = capsys.readouterr()
    command = next(name for name in cli.COMMANDS if words.startswith(name))
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert complaint in captured.err
    assert captured.err.endswith(f"(see echo-sched {command} --help)\n")


def test_a_rejected_word_with_line_breaks_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fetch", "one", "two\nthree"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", ["serv", "--policy echo", "bench", "bench lode", "serve-it"])
def test_what_is_no_command_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(words.split())
    captured = capsys.readouterr()
    if words == "bench":  # a family without a member: its commands are listed
        assert (code, captured.err) == (0, "")
        assert "bench compare" in captured.out
        return
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("error: unknown command ") and captured.err.count("\n") == 1
