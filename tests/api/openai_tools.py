#!/usr/bin/env python3
"""Reasoning and tool calls as OpenAI's own Python client reads them.

  openai_tools.py BASE_URL

src/api/tests/openai.rs runs it: the server is the real one, and what the node tells it is written there, by the
last message. Needs the package `openai`.
"""

import json
import sys

import openai

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def ask(client: openai.OpenAI, messages: list, **more):
    return client.chat.completions.create(model="default", messages=messages, tools=TOOLS, **more)


def question(text: str) -> list:
    return [{"role": "user", "content": text}]


def streamed(client: openai.OpenAI, messages: list):
    """Reasoning, content, calls and reason, put together as the client's users do."""
    reasoning, content, calls, reason = "", "", {}, None
    for chunk in ask(client, messages, stream=True):
        for choice in chunk.choices:
            delta = choice.delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
            reason = choice.finish_reason or reason
    return reasoning, content, [calls[at] for at in sorted(calls)], reason


def main(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)

    choice = ask(client, question("think")).choices[0]
    assert choice.message.reasoning_content == "Let me think.", choice
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("Grün.", None, "stop"), choice
    assert streamed(client, question("think")) == ("Let me think.", "Grün.", [], "stop")

    choice = ask(client, question("call")).choices[0]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls"), choice
    calls = choice.message.tool_calls
    assert [call.type for call in calls] == ["function"] * 2 and calls[0].id != calls[1].id, calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Zürich", "\"Bern\""], calls
    reasoning, content, parts, reason = streamed(client, question("call"))
    assert (reasoning, content, reason) == ("", "", "tool_calls")
    assert [(part["name"], part["arguments"]) for part in parts] == [(call.function.name, call.function.arguments) for call in calls]

    # The answer goes back as it came, with the tools' results.
    results = [{"role": "tool", "tool_call_id": call.id, "content": "21"} for call in calls]
    choice = ask(client, [*question("call"), choice.message, *results]).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Warm.", "stop"), choice

    for more, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "tool_choice"),
        ({"extra_body": {"chat_template_kwargs": {"tools": []}}}, "chat_template_kwargs"),
    ):
        try:
            ask(client, question("call"), **more)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{more} was taken")


if __name__ == "__main__":
    main(*sys.argv[1:])
