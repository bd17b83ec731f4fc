"""Asks one question of an OpenAI-style endpoint and prints the answer and how fast it came.

  ask.py URL QUESTION [--stream] [--max-tokens N]

Standard library only. URL is the address up to /v1. Times are the client's own: TTFT is the first
piece of text, tok/s what came after it.
"""

import argparse
import http.client
import json
import sys
import time
import urllib.parse


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("question")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=48)
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.url)
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": args.question}],
        "max_tokens": args.max_tokens,
        "temperature": 0,
        "stream": args.stream,
    }
    if args.stream:
        body["stream_options"] = {"include_usage": True}
    client = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    began = time.monotonic()
    client.request(
        "POST",
        url.path.rstrip("/") + "/chat/completions",
        json.dumps(body),
        {"Content-Type": "application/json"},
    )
    response = client.getresponse()
    if response.status != 200:
        sys.exit(f"error: {response.status} {response.read(2000).decode(errors='replace')}")
    if args.stream:
        show_stream(response, began)
    else:
        answer = json.load(response)
        print(answer["choices"][0]["message"]["content"])
        seconds = time.monotonic() - began
        tokens = answer["usage"]["completion_tokens"]
        print(f"  ({tokens} tokens in {seconds:.2f} s, not streamed)")


def show_stream(response, began):
    first = last = None
    tokens = 0
    for line in response:
        line = line.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            sys.exit(f"\nerror: {event['error']['message']}")
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", []):
            text = choice["delta"].get("content")
            if text:
                last = time.monotonic()
                first = first or last
                print(text, end="", flush=True)
    print()
    if first is None:
        sys.exit("error: the stream held no text")
    rate = (tokens - 1) / (last - first) if last > first else 0.0
    print(f"  (TTFT {first - began:.2f} s, {rate:.1f} tok/s, {tokens} tokens, streamed)")


main()
