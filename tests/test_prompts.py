"""load_prompts over every layout, the real files where they are at hand, and encode_prompt with small tokenizers."""

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from echo_sched.errors import ConfigError, DataError
from echo_sched.prompts import Prompt, encode_prompt, load_prompts

ROOT = Path(__file__).resolve().parents[1]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def write_lines(folder: Path, rows: Sequence[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


TEXT_ROWS = [
    ("a bare string", "a bare string"),
    ({"prompt": "p", "completion": "x"}, "p"),
    ({"text": "t"}, "t"),
    ({"question": "q", "answer": "x"}, "q"),
    ({"instruction": "do", "output": "x"}, "do"),
    ({"instruction": "do", "input": "this"}, "do\n\nthis"),
    ({"instruction": "do", "input": ""}, "do"),
    ({"instruction": "do", "instances": [{"input": "that", "output": "x"}]}, "do\n\nthat"),
    ({"query": "why", "response": "x", "history": []}, "why"),
    ({"prompt": None, "question": "q"}, "q"),
    ({"prompt": "\n  kept as it is "}, "\n  kept as it is "),
]


@pytest.mark.parametrize(("row", "text"), TEXT_ROWS)
def test_text_layouts(tmp_path: Path, row: Any, text: str) -> None:
    assert load_prompts(write_lines(tmp_path, [row])).prompts == [Prompt(text, None, 1, None)]


CHAT_ROWS = [
    ({"turns": ["one", "two"]}, [user("one")]),
    ({"turns": [{"content": "one"}]}, [user("one")]),
    ({"turns": ["one"], "system": "s"}, [system("s"), user("one")]),
    ({"messages": [system("s"), user("u"), assistant("a")]}, [system("s"), user("u")]),
    (
        {"messages": [user("1"), assistant("2"), user("3"), assistant("4"), assistant("5")]},
        [user("1"), assistant("2"), user("3")],
    ),
    ({"messages": [user("u")], "system": "s"}, [system("s"), user("u")]),
    ({"messages": [system("own"), user("u")], "system": "s"}, [system("own"), user("u")]),
    ({"prompt": [user("u")], "completion": [assistant("a")]}, [user("u")]),
    (
        {
            "conversations": [
                {"from": "system", "value": "s"},
                {"from": "human", "value": "h"},
                {"from": "gpt", "value": "g"},
            ]
        },
        [system("s"), user("h")],
    ),
    ({"conversations": [user("u"), {"role": "tool", "content": "t"}]}, [user("u")]),
    (
        {"messages": [user("u"), {"role": "assistant", "content": None, "tool_calls": []}, user("v")]},
        [user("u"), assistant(""), user("v")],
    ),
    (
        {"system": "s", "conversation": [{"human": "1", "assistant": "2"}, {"human": "3", "assistant": "4"}]},
        [system("s"), user("1"), assistant("2"), user("3")],
    ),
    (
        {"query": "3", "history": [["1", "2"]], "system": "s"},
        [system("s"), user("1"), assistant("2"), user("3")],
    ),
    ({"instruction": "do", "input": "this", "system": "s"}, [system("s"), user("do\n\nthis")]),
    ({"text": "hello", "role": "prompter", "parent_message_id": None}, [user("hello")]),
]


@pytest.mark.parametrize(("row", "messages"), CHAT_ROWS)
def test_chat_layouts_end_with_the_last_user_message(tmp_path: Path, row: Any, messages: list[dict[str, str]]) -> None:
    assert load_prompts(write_lines(tmp_path, [row])).prompts == [Prompt(None, tuple(messages), 1, None)]


BAD_ROWS = [
    ({"answer": 42}, "no known field"),
    ({}, "no known field"),
    (7, "neither an object nor a string"),
    ([user("u")], "neither an object nor a string"),
    (None, "neither an object nor a string"),
    ({"prompt": " \n"}, "empty text"),
    ("", "empty text"),
    ({"turns": []}, "empty text"),
    ({"turns": [""]}, "empty text"),
    ({"messages": [user("earlier"), assistant("a"), user(" ")]}, "empty text"),
    ({"prompt": 7}, "wrong type"),
    ({"turns": "one"}, "wrong type"),
    ({"turns": [7]}, "wrong type"),
    ({"messages": {"role": "user"}}, "wrong type"),
    ({"messages": ["u"]}, "wrong type"),
    ({"messages": [user("u") | {"content": [{"type": "image"}]}]}, "wrong type"),
    ({"instruction": "do", "input": ["this"]}, "wrong type"),
    ({"query": "q", "history": "earlier"}, "wrong type"),
    ({"prompt": "p", "system": 7}, "wrong type"),
    ({"messages": [{"role": "narrator", "content": "n"}]}, "unknown role"),
    ({"messages": [{"content": "n"}]}, "unknown role"),
    ({"messages": []}, "no user message"),
    ({"messages": [system("s"), assistant("a")]}, "no user message"),
    ({"text": "reply", "role": "assistant"}, "a message that is not a user's"),
    ({"prompt": "half a pair \ud83d"}, "text that is not valid Unicode"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS)
def test_bad_rows_are_counted_by_reason_and_never_fatal(tmp_path: Path, row: Any, reason: str) -> None:
    loaded = load_prompts(write_lines(tmp_path, [row, {"prompt": "good"}, row]))
    assert loaded.prompts == [Prompt("good", None, 2, None)]
    assert (loaded.num_bad_rows, loaded.bad_row_reasons) == (2, {reason: 2})


@pytest.mark.parametrize(
    "line",
    [b"{broken", b'{"prompt": "a"} trailing', b"[1, 2", b"[" * 100_000, b"9" * 5000, b"\xff\xfe\x00", b'"a\tb"'],
    ids=["broken", "trailing", "list", "nested", "number", "binary", "control"],
)
def test_a_line_that_is_not_json_is_counted(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b'\n"good"\n')
    loaded = load_prompts(path)
    assert loaded.prompts == [Prompt("good", None, 2, None)]
    assert loaded.bad_row_reasons == {"not JSON": 1}


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('"one\u2028two\x85three"\n', encoding="utf-8")
    assert load_prompts(path).prompts == [Prompt("one\u2028two\x85three", None, 1, None)]
    path.write_text('"one\u2028two"\n"three"\n', encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(path).prompts] == ["one\u2028two", "three"]


def test_bytes_that_are_not_utf8_spoil_their_own_row_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'"caf\xe9"\n"caf\xc3\xa9"\n')
    loaded = load_prompts(path)
    assert [prompt.text for prompt in loaded.prompts] == ["café"]
    assert loaded.bad_row_reasons == {"text that is not valid Unicode": 1}


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize(
    "body",
    [
        b'\n{"prompt": "a"}\n\n"b"\n',
        b'\r\n{"prompt": "a"}\r\n  \r\n"b"',
    ],
    ids=["lf", "crlf"],
)
def test_line_endings_blank_lines_bom_and_gzip(tmp_path: Path, body: bytes, mark: bytes, compress: bool) -> None:
    raw = gzip.compress(mark + body) if compress else mark + body
    path = tmp_path / ("rows.jsonl.gz" if compress else "rows.jsonl")
    path.write_bytes(raw)
    loaded = load_prompts(path)
    assert loaded.prompts == [Prompt("a", None, 2, None), Prompt("b", None, 4, None)]
    assert loaded.num_bad_rows == 0
    assert loaded.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_or_a_single_object_is_a_file_of_rows(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"prompt": "a"}, "b", 3], indent=indent))
    loaded = load_prompts(path)
    assert loaded.prompts == [Prompt("a", None, 1, None), Prompt("b", None, 2, None)]
    assert loaded.num_bad_rows == 1
    path.write_text(json.dumps({"conversations": [{"from": "human", "value": "h"}]}, indent=indent))
    assert load_prompts(path).prompts == [Prompt(None, (user("h"),), 1, None)]


def test_category_is_the_rows_category_or_source_where_that_is_a_string(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "category": "code"}, {"prompt": "b", "source": "forum"}, {"prompt": "c", "category": 7}]
    assert [prompt.category for prompt in load_prompts(write_lines(tmp_path, rows)).prompts] == ["code", "forum", None]


def test_max_prompts_counts_usable_rows_and_stops_there(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [{}, "a", {}, "b", {}, "c"])
    loaded = load_prompts(path, max_prompts=2)
    assert [prompt.text for prompt in loaded.prompts] == ["a", "b"]
    assert loaded.num_bad_rows == 2
    with pytest.raises(ConfigError, match="max_prompts"):
        load_prompts(path, max_prompts=0)


UNREADABLE = [
    ("empty.jsonl", b"", "holds no rows"),
    ("blank.jsonl", b"\xef\xbb\xbf\n \n", "holds no rows"),
    ("list.json", b"[]", "holds no rows"),
    ("other.jsonl", b'{"a": 1}\nnonsense\n{"b": 2}\n', r"3 rows read \(no known field: 2, not JSON: 1\)"),
    ("array.json", b'[\n{"prompt": "a"},\n"b"', "breaks off"),
    ("half.jsonl.gz", gzip.compress(b'"a"\n' * 100)[:-9], "damaged gzip"),
    ("damaged.jsonl.gz", b"\x1f\x8b" + b"\x00" * 30, "damaged gzip"),
    ("table.tsv", b"question\tanswer\n", "tables are not read"),
    ("table.csv.gz", gzip.compress(b"question,answer\n"), "tables are not read"),
]


@pytest.mark.parametrize(("name", "raw", "message"), UNREADABLE, ids=[name for name, _, _ in UNREADABLE])
def test_a_file_without_prompts_is_one_clear_line(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message) as caught:
        load_prompts(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot read") as caught:
            load_prompts(path)
        assert str(path) in str(caught.value)


# file -> (prompts, of which chats, bad rows)
REAL_FILES = {
    "eval/HumanEval.jsonl.gz": (164, 0, 0),
    "eval/eagle_humaneval_question.jsonl": (80, 80, 0),
    "eval/gsm8k_test.jsonl": (1319, 0, 0),
    "eval/mt_bench_question.jsonl": (80, 80, 0),
    "formats/axolotl_conversation.json": (1, 1, 0),
    "formats/azure_prompt_completion_valid.jsonl": (45, 0, 0),
    "formats/fastchat_dummy_conversation.json": (500, 500, 0),
    "formats/ms_swift_alpaca.jsonl": (3, 1, 0),
    "formats/ms_swift_chatml.jsonl": (3, 3, 0),
    "formats/ms_swift_conversations.jsonl": (3, 3, 0),
    "formats/ms_swift_sharegpt.jsonl": (3, 3, 0),
    "formats/ms_swift_swift_multi.jsonl": (3, 2, 0),
    "formats/oasst_realistic_seed_data.json": (179, 179, 265),
    "formats/specforge_tool_use_conversation.jsonl": (1, 1, 0),
    "train/arena_hard_v0.1_question.jsonl": (500, 500, 0),
    "train/gsm8k_train.jsonl": (7473, 0, 0),
    "train/ifeval_input_data.jsonl": (541, 0, 0),
    "train/oasst_en_100_text.jsonl": (100, 0, 0),
    "train/oasst_prompt_lottery_en_250_text.jsonl": (250, 0, 0),
    "train/self_instruct_seed_tasks.jsonl": (175, 0, 0),
    "train/self_instruct_user_oriented.jsonl": (252, 0, 0),
    "train/smollm2_generations.jsonl.gz": (4593, 0, 0),
}


@pytest.mark.parametrize("name", REAL_FILES)
def test_public_data_sets_are_read_whole(name: str, shared_data: Path) -> None:
    loaded = load_prompts(shared_data / name)
    num_chats = sum(prompt.messages is not None for prompt in loaded.prompts)
    assert (len(loaded.prompts), num_chats, loaded.num_bad_rows) == REAL_FILES[name]
    for prompt in loaded.prompts:
        assert (prompt.text is None) != (prompt.messages is None)
        assert prompt.messages is None or prompt.messages[-1]["role"] == "user"


def test_the_example_file_is_a_balanced_mix() -> None:
    path = ROOT / "examples" / "prompts.jsonl"
    loaded = load_prompts(path)
    assert loaded.num_bad_rows == 0
    assert Counter(prompt.category for prompt in loaded.prompts) == {"chat": 20, "code": 20, "maths": 20}
    assert 3 <= sum(prompt.text is not None for prompt in loaded.prompts) <= 12
    contents = [
        prompt.text or prompt.messages[-1]["content"] for prompt in loaded.prompts if prompt.text or prompt.messages
    ]
    assert len(set(contents)) == 60
    assert all(10 <= len(content.split()) <= 200 for content in contents)
    ids = [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(set(ids)) == 60


class LetterTokenizer:
    """One id per character, and BOS where special tokens are asked for. Its template writes BOS itself."""

    BOS = "^"

    def __init__(self, chat_template: str | None = "yes", refuses: str | None = None) -> None:
        self.chat_template = chat_template
        self._refuses = refuses

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        if any(message["role"] == self._refuses for message in conversation):
            raise ValueError(f"Conversation\nroles: no {self._refuses}")
        body = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        return self.BOS + body + ("<assistant>" if add_generation_prompt else "")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in (self.BOS if add_special_tokens else "") + text]


CHAT = Prompt(None, (system("s"), user("u")), 1, None)
TEXT = Prompt("t", None, 1, None)


@pytest.mark.parametrize(
    ("prompt", "mode", "template", "expected"),
    [
        (CHAT, "auto", "yes", "^<system>s<user>u<assistant>"),
        (CHAT, "always", "yes", "^<system>s<user>u<assistant>"),
        (CHAT, "never", "yes", "^s\n\nu"),
        (CHAT, "auto", None, "^s\n\nu"),
        (TEXT, "auto", "yes", "^t"),
        (TEXT, "always", "yes", "^<user>t<assistant>"),
        (TEXT, "never", "yes", "^t"),
        (TEXT, "auto", None, "^t"),
    ],
)
def test_templates_apply_to_chats_and_bos_is_written_once(
    prompt: Prompt, mode: Any, template: str | None, expected: str
) -> None:
    ids = encode_prompt(LetterTokenizer(template), prompt, mode)
    assert "".join(map(chr, ids)) == expected


def test_a_template_that_is_missing_or_refuses_the_roles_is_one_clear_line() -> None:
    with pytest.raises(DataError, match="no chat template"):
        encode_prompt(LetterTokenizer(None), TEXT, "always")
    with pytest.raises(DataError, match="refuses the roles system, user: Conversation roles: no system"):
        encode_prompt(LetterTokenizer(refuses="system"), CHAT)
