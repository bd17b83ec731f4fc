#!/usr/bin/env python3
"""Drives a real cluster of two nodes with OpenAI's own Python client.

  openai_smoke.py DAISY MODEL    the binary, and a checkpoint with a chat template

Needs the package `openai`. Prints a line for each check and at last `N passed, N failed`. Answers are
compared with one another rather than with fixed text, so that any small model will do. Start at CHECKS.
"""

import functools
import os
import subprocess
import sys
import tempfile
import threading
import traceback

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PATIENCE_S = 180


class Process:
    """A running command and what it says."""

    def __init__(self, command: list[str], home: str):
        environment = os.environ | {"DAISY_HOME": home}
        self.child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self.changed = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.child.stdout:
            self.add(line.rstrip("\n"))
        self.add(None)

    def add(self, line: str | None) -> None:
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def line(self, text: str) -> str:
        """Waits for a line that holds `text`."""

        def found():
            return None in self.lines or any(text in line for line in self.lines)

        with self.changed:
            self.changed.wait_for(found, PATIENCE_S)
            for line in self.lines:
                if line is not None and text in line:
                    return line
            said = "\n".join(line for line in self.lines if line is not None)
            sys.exit(f"no line holds `{text}` in:\n{said}")

    def stop(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Cluster:
    """Two nodes that trust each other, and a model served over both."""

    def __init__(self, daisy: str, model: str, folder: str):
        homes = [os.path.join(folder, name) for name in ("node0", "node1")]
        run = lambda home, *words: subprocess.run(
            [daisy, "cluster", *words], env=os.environ | {"DAISY_HOME": home}, check=True, capture_output=True, text=True
        ).stdout.strip()
        ids = [run(home, "id") for home in homes]
        for home, other in zip(homes, reversed(ids)):
            run(home, "trust", other)
        self.processes = []
        for home in homes:
            up = [daisy, "cluster", "up", "--name", os.path.basename(home), "--listen", "127.0.0.1:0"]
            self.processes.append(Process(up, home))
        addresses = [process.line("is up").rsplit(" ", 1)[1] for process in self.processes]
        serve = [daisy, "cluster", "serve", "--model", model, "--nodes", "all", "--port", "0", "--peer", addresses[1]]
        self.processes.append(Process(serve, homes[0]))
        url = self.processes[-1].line("OpenAI endpoint").rsplit(" ", 1)[1]
        self.url = url.removesuffix("/chat/completions")

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()


def ask(client: openai.OpenAI, **more):
    parameters = {"model": "default", "messages": QUESTION, "max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(**parameters)


def text(client: openai.OpenAI, **more) -> str:
    return ask(client, **more).choices[0].message.content


@functools.cache
def greedy(client: openai.OpenAI):
    """The answer that the checks compare theirs with."""
    return ask(client)


def greedy_text(client: openai.OpenAI) -> str:
    return greedy(client).choices[0].message.content


def streamed(client: openai.OpenAI, **more):
    """Text, reason of the end, usage, log probabilities of a streamed answer."""
    whole, reason, usage, logprobs = "", None, None, []
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **more):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            whole += choice.delta.content or ""
            reason = choice.finish_reason or reason
            logprobs += choice.logprobs.content if choice.logprobs else []
    return whole, reason, usage, logprobs


def models(client):
    [served] = client.models.list().data
    assert client.models.retrieve(served.id) == served
    assert served.context_length > 0


def whole_and_streamed_answers_agree(client):
    answer = greedy(client)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert streamed(client) == (choice.message.content, choice.finish_reason, usage, [])


def the_length_is_kept(client):
    answer = ask(client, max_tokens=3)
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"
    assert ask(client, max_tokens=None, max_completion_tokens=2).usage.completion_tokens == 2


def stop_strings_end_the_answer_and_are_never_shown(client):
    whole = greedy_text(client)
    # From the middle of a word to the middle of another, so that it spans tokens.
    at = len(whole) // 2
    stop = whole[at : at + 4]
    before = whole[: whole.index(stop)]
    for given in (stop, ["no such text", stop]):
        answer = ask(client, stop=given)
        assert answer.choices[0].message.content == before, answer
        assert answer.choices[0].finish_reason == "stop"
        shown, reason, usage, _ = streamed(client, stop=given)
        assert (shown, reason, usage) == (before, "stop", answer.usage)
    assert answer.usage.completion_tokens < greedy(client).usage.completion_tokens
    assert text(client, stop=["no such text", whole[-1] + "?"]) == whole


def log_probabilities_belong_to_the_tokens(client):
    answer = ask(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes or []).decode(errors="replace") == greedy_text(client)
    for token in content:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] <= 0
        # Greedy: the drawn one is the likeliest.
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, tops[0])
    assert streamed(client, logprobs=True, top_logprobs=3)[3] == content
    bare = ask(client, logprobs=True).choices[0].logprobs.content
    assert [token.logprob for token in bare] == [token.logprob for token in content]
    assert all(token.top_logprobs == [] for token in bare)


def a_seed_decides(client):
    drawn = lambda seed: text(client, temperature=2, seed=seed)
    answers = [drawn(seed) for seed in (1, 2)]
    assert answers[0] != answers[1]
    assert [drawn(seed) for seed in (1, 2)] == answers


def parameters_change_the_draw(client):
    assert text(client, temperature=2, extra_body={"min_p": 1}) == greedy_text(client)
    assert text(client, temperature=2, extra_body={"top_k": 1}) == greedy_text(client)
    forced = dict(logprobs=True, max_tokens=6, logit_bias={"30": 100})
    said = [token.bytes for token in ask(client, **forced).choices[0].logprobs.content]
    assert len(said) == 6 and said.count(said[0]) == 6
    # A bias of 100 outweighs it: each time that the token was said takes off 2.
    assert text(client, **forced, frequency_penalty=2) == bytes(said[0] * 6).decode()
    weaker = forced | dict(logit_bias={"30": 20}, max_tokens=12)
    assert text(client, **weaker, frequency_penalty=2, presence_penalty=2) != text(client, **weaker)
    assert text(client, extra_body={"repetition_penalty": 2}) != greedy_text(client)


def errors_are_the_clients_own(client):
    for more, param in (
        ({"temperature": 3}, "temperature"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
    ):
        try:
            ask(client, **more)
        except openai.BadRequestError as error:
            assert error.param == param and error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"{more} was taken")
    try:
        ask(client, model="gpt-4")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("another model answered")


def tools_are_taken_and_history_is_rendered(client):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    # Without constraints a small model says what it says: the model's template does not show it any tool.
    assert text(client, tools=tools) == greedy_text(client)
    assert text(client, tools=tools, tool_choice="none", parallel_tool_calls=False) == greedy_text(client)
    assert text(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == greedy_text(client)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "abcdefghi", "content": "Paris"}]
    assert ask(client, messages=called, tools=tools).usage.prompt_tokens > greedy(client).usage.prompt_tokens


def a_stream_can_be_left(client):
    stream = ask(client, stream=True, max_tokens=500)
    next(iter(stream))
    stream.close()
    assert text(client) == greedy_text(client)


CHECKS = [
    models,
    whole_and_streamed_answers_agree,
    the_length_is_kept,
    stop_strings_end_the_answer_and_are_never_shown,
    log_probabilities_belong_to_the_tokens,
    a_seed_decides,
    parameters_change_the_draw,
    errors_are_the_clients_own,
    tools_are_taken_and_history_is_rendered,
    a_stream_can_be_left,
]


def main(daisy: str, model: str) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(daisy, model, folder)
        try:
            client = openai.OpenAI(base_url=cluster.url, api_key="any", max_retries=0, timeout=PATIENCE_S)
            for check in CHECKS:
                try:
                    check(client)
                    print(f"ok      {check.__name__}")
                except Exception:
                    failed += 1
                    print(f"FAILED  {check.__name__}\n{traceback.format_exc()}")
        finally:
            cluster.stop()
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
