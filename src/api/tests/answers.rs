//! What a client gets when all goes well, and when it fails on the way.

use std::sync::Arc;

use daisy_proto::Sampling;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::super::chat::{Label, Source};
use super::super::stream::{KEEP_ALIVE, events};
use super::*;
use crate::node::handle::{ChatRequest, Conversation, LoadingRank, ToolCall};

#[tokio::test]
async fn a_whole_answer() {
    let mut fake = Fake::start().await;
    let client = fake.send(&post(chat(r#","seed":5,"max_tokens":3"#))).await;
    let submission = fake.submission().await;
    let id = submission.request.id.clone();
    assert_eq!((submission.request.seed, submission.request.max_tokens), (Some(5), Some(3)));
    let (events, receiver) = mpsc::channel(8);
    let generation = Generation { prompt_tokens: 11, seed: 5, events: receiver };
    submission.reply.send(Ok(generation)).unwrap();
    for event in [text("Hé"), text(""), text("llo"), finished(FinishReason::Length)] {
        events.send(event).await.unwrap();
    }
    let reply = client.reply().await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-request-id"), Some(id.as_str()));
    assert!(!reply.head.contains("access-control"), "{reply:?}");
    let created = reply.json()["created"].as_u64().unwrap();
    assert!(created > 1_700_000_000);
    let expected = format!(
        concat!(
            r#"{{"id":"{}","object":"chat.completion","created":{},"model":"org/tiny","#,
            r#""system_fingerprint":"daisy-{}","choices":[{{"index":0,"#,
            r#""message":{{"role":"assistant","content":"Héllo","refusal":null}},"#,
            r#""logprobs":null,"finish_reason":"length"}}],"#,
            r#""usage":{{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}},"#,
            r#""timings":{{"queue_ms":0.5,"prefill_ms":22.0,"decode_ms":10.0,"#,
            r#""prompt_tokens_per_second":500.0,"completion_tokens_per_second":200.0}}}}"#,
        ),
        id,
        created,
        env!("CARGO_PKG_VERSION"),
    );
    assert_eq!(reply.body, expected);
}

#[tokio::test]
async fn a_stream_byte_for_byte() {
    for include_usage in [false, true] {
        let mut fake = Fake::start().await;
        let more =
            format!(r#","stream":true,"stream_options":{{"include_usage":{include_usage}}}"#);
        let client = fake.send(&post(chat(&more))).await;
        fake.admit_with([text("a\nb"), text("\"c"), finished(FinishReason::Stop)]).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert_eq!(reply.header("cache-control"), Some("no-cache"));

        let first: Value = serde_json::from_str(reply.body[6..].lines().next().unwrap()).unwrap();
        let base = format!(
            r#"data: {{"id":"{}","object":"chat.completion.chunk","created":{},"model":"org/tiny","system_fingerprint":"daisy-{}","choices":"#,
            reply.header("x-request-id").unwrap(),
            first["created"],
            env!("CARGO_PKG_VERSION"),
        );
        let null = if include_usage { r#","usage":null"# } else { "" };
        let mut expected = String::new();
        for (delta, reason) in [
            (r#"{"role":"assistant","content":""}"#, "null"),
            (r#"{"content":"a\nb"}"#, "null"),
            (r#"{"content":"\"c"}"#, "null"),
            ("{}", r#""stop""#),
        ] {
            expected.push_str(&base);
            let choice = format!(
                r#"[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}]{null}"#
            );
            expected.push_str(&choice);
            if reason != "null" {
                expected.push_str(
                    r#","timings":{"queue_ms":0.5,"prefill_ms":22.0,"decode_ms":10.0,"prompt_tokens_per_second":500.0,"completion_tokens_per_second":200.0}"#,
                );
            }
            expected.push_str("}\n\n");
        }
        if include_usage {
            expected.push_str(&base);
            expected.push_str(
                "[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,\"total_tokens\":14}}\n\n",
            );
        }
        expected.push_str("data: [DONE]\n\n");
        assert_eq!(reply.body, expected);
    }
}

fn thought(reasoning: &str) -> GenerationEvent {
    GenerationEvent::Delta(Delta { reasoning: reasoning.to_owned(), ..Delta::default() })
}

fn called(calls: &[(&str, &str)]) -> GenerationEvent {
    let call = |(name, arguments): &(&str, &str)| ToolCall {
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    };
    GenerationEvent::Delta(Delta { calls: calls.iter().map(call).collect(), ..Delta::default() })
}

const TOOLS: &str = r#","tools":[{"type":"function","function":{"name":"f"}}]"#;

/// The ids in an answer: nine letters and digits each, no two alike.
fn call_ids(body: &str) -> Vec<&str> {
    let ids: Vec<&str> = body
        .split(r#""id":""#)
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .filter(|id| !id.starts_with("chatcmpl-"))
        .collect();
    for id in &ids {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(ids.iter().filter(|other| *other == id).count(), 1, "{ids:?}");
    }
    ids
}

#[tokio::test]
async fn reasoning_and_calls_in_a_whole_answer() {
    let two = [("f", r#"{"a":"é"}"#), ("g", "{}")];
    // What the node tells; the message but for its ids, and the end.
    let table = [
        (
            vec![thought("I "), thought("think"), text("Hi"), called(&two[..1]), called(&two[1..])],
            r#"{"role":"assistant","content":"Hi","reasoning_content":"I think","tool_calls":[{"id":"ID","type":"function","function":{"name":"f","arguments":"{\"a\":\"é\"}"}},{"id":"ID","type":"function","function":{"name":"g","arguments":"{}"}}],"refusal":null}"#,
            "tool_calls",
        ),
        (
            vec![called(&two[1..])],
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"ID","type":"function","function":{"name":"g","arguments":"{}"}}],"refusal":null}"#,
            "tool_calls",
        ),
        (
            vec![thought("Hm")],
            r#"{"role":"assistant","content":"","reasoning_content":"Hm","refusal":null}"#,
            "stop",
        ),
    ];
    for (events, message, reason) in table {
        let mut fake = Fake::start().await;
        let client = fake.send(&post(chat(TOOLS))).await;
        fake.admit_with(events.into_iter().chain([finished(FinishReason::Stop)])).await;
        let mut body = client.reply().await.body;
        for id in call_ids(&body.clone()) {
            body = body.replace(id, "ID");
        }
        assert!(body.contains(&format!(r#""message":{message},"#)), "{body}");
        assert!(body.contains(&format!(r#""finish_reason":"{reason}""#)), "{body}");
    }
}

#[tokio::test]
async fn reasoning_and_calls_in_a_stream() {
    let mut fake = Fake::start().await;
    let client = fake.send(&post(chat(&format!(r#"{TOOLS},"stream":true"#)))).await;
    let both = GenerationEvent::Delta(Delta {
        text: "Hi".to_owned(),
        reasoning: "Hm".to_owned(),
        ..Delta::default()
    });
    let events = [both, called(&[("f", "{}"), ("g", "{}")]), called(&[("f", "{}")])];
    // Cut off by its length, it did not end for the sake of its calls.
    fake.admit_with(events.into_iter().chain([finished(FinishReason::Length)])).await;
    let mut body = client.reply().await.body;
    let ids: Vec<String> = call_ids(&body).into_iter().map(str::to_owned).collect();
    assert_eq!(ids.len(), 3);
    for id in ids {
        body = body.replace(&id, "ID");
    }
    let deltas: Vec<&str> = body
        .split(r#""delta":"#)
        .skip(1)
        .map(|rest| rest.split(r#","logprobs""#).next().unwrap())
        .collect();
    assert_eq!(
        deltas,
        [
            r#"{"role":"assistant","content":""}"#,
            r#"{"reasoning_content":"Hm"}"#,
            r#"{"content":"Hi"}"#,
            r#"{"tool_calls":[{"index":0,"id":"ID","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"ID","type":"function","function":{"name":"g","arguments":"{}"}}]}"#,
            r#"{"tool_calls":[{"index":2,"id":"ID","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            "{}",
        ]
    );
    assert!(body.contains(r#""finish_reason":"length""#), "{body}");
}

#[tokio::test]
async fn log_probabilities_in_both_shapes() {
    let first = concat!(
        r#"{"token":"Hi","logprob":-0.5,"bytes":[72,105],"#,
        r#""top_logprobs":[{"token":"Hi","logprob":-0.5,"bytes":[72,105]},"#,
        r#"{"token":"<end>","logprob":-9999.0,"bytes":null}]}"#
    );
    // A part of a character.
    let second = concat!(
        r#"{"token":"�","logprob":-1.5,"bytes":[195],"#,
        r#""top_logprobs":[{"token":"�","logprob":-1.5,"bytes":[195]},"#,
        r#"{"token":"<end>","logprob":-9999.0,"bytes":null}]}"#
    );
    let answer = || {
        let events = [token("Hi", b"Hi", -0.5), token("", &[195], -1.5), text("!")];
        events.into_iter().chain([finished(FinishReason::Stop)])
    };
    let of = |content: &str| format!(r#""logprobs":{{"content":[{content}],"refusal":null}}"#);

    let mut fake = Fake::start().await;
    let client = fake.send(&post(chat(r#","logprobs":true,"top_logprobs":2"#))).await;
    fake.admit_with(answer()).await;
    let body = client.reply().await.body;
    assert!(body.contains(&of(&format!("{first},{second}"))), "{body}");

    let more = r#","stream":true,"logprobs":true,"top_logprobs":2"#;
    let client = fake.send(&post(chat(more))).await;
    fake.admit_with(answer()).await;
    let body = client.reply().await.body;
    for (delta, logprobs) in [
        (r#"{"role":"assistant","content":""}"#, r#""logprobs":null"#),
        (r#"{"content":"Hi"}"#, of(first).as_str()),
        (r#"{"content":""}"#, of(second).as_str()),
        (r#"{"content":"!"}"#, r#""logprobs":null"#),
        ("{}", r#""logprobs":null"#),
    ] {
        assert!(body.contains(&format!(r#""delta":{delta},{logprobs}"#)), "{delta}: {body}");
    }

    // Asked for, but there was no token.
    let client = fake.send(&post(chat(r#","logprobs":true"#))).await;
    fake.admit_with([finished(FinishReason::Stop)]).await;
    let body = client.reply().await.body;
    assert!(body.contains(&of("")), "{body}");
}

#[tokio::test]
async fn text_is_sent_when_it_comes() {
    let mut fake = Fake::start().await;
    let mut client = fake.send(&post(chat(r#","stream":true"#))).await;
    let events = fake.admit().await;
    for word in ["one", "two", "three"] {
        events.send(text(word)).await.unwrap();
        client.wait_for(&format!(r#"{{"content":"{word}"}}"#)).await;
    }
}

#[tokio::test]
async fn a_failure_before_the_first_text_has_a_status() {
    for more in ["", r#","stream":true"#] {
        let mut fake = Fake::start().await;
        let client = fake.send(&post(chat(more))).await;
        fake.admit_with([GenerationEvent::Failed("rank 1 on mini stopped".to_owned())]).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 503);
        assert!(reply.header("retry-after").is_some());
        let (code, param, message) = reply.error();
        assert_eq!((code.as_str(), param), ("generation_failed", None));
        assert_eq!(message, "rank 1 on mini stopped");
    }
}

#[tokio::test]
async fn a_whole_answer_that_fails_late_is_an_error_and_not_half_a_text() {
    let endings = [
        vec![text("half"), GenerationEvent::Failed("rank 1 on mini stopped".to_owned())],
        vec![text("half"), finished(FinishReason::Cancelled)],
        vec![text("half")],
    ];
    for ending in endings {
        let mut fake = Fake::start().await;
        let client = fake.send(&post(chat(""))).await;
        fake.admit_with(ending).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.error().0, "generation_failed");
        assert!(!reply.body.contains("half"));
    }
}

#[tokio::test]
async fn a_stream_that_fails_late_ends_with_an_error_event() {
    let endings = [
        (vec![GenerationEvent::Failed("rank 1 on mini stopped".to_owned())], "rank 1 on mini"),
        (vec![finished(FinishReason::Cancelled)], "was cancelled"),
        (vec![], "without a reason"),
    ];
    for (ending, said) in endings {
        let mut fake = Fake::start().await;
        let client = fake.send(&post(chat(r#","stream":true"#))).await;
        fake.admit_with([text("half")].into_iter().chain(ending)).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 200);
        let last = reply.body.trim_end().rsplit("\n\n").next().unwrap();
        let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["type"], "server_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(said), "{error}");
        assert!(!reply.body.contains("[DONE]"));
        assert!(!reply.body.contains(r#""finish_reason":"stop""#));
    }
}

#[tokio::test]
async fn models_and_probes() {
    let fake = Fake::start().await;
    let model = concat!(
        r#"{"id":"org/tiny","object":"model","created":1234,"owned_by":"daisy","#,
        r#""context_length":2048}"#
    );
    let list = format!(r#"{{"object":"list","data":[{model}]}}"#);
    let ready = r#"{"status":"ready","model":"org/tiny"}"#;
    for (path, body) in [
        ("/v1/models", list.as_str()),
        ("/v1/models/org/tiny", model),
        ("/v1/models/org%2Ftiny", model),
        ("/v1/models/tiny", model),
        ("/v1/models/default", model),
        ("/health", r#"{"status":"alive"}"#),
        ("/ready", ready),
    ] {
        let reply = fake.ask(&get(path)).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, body), "{path}");
        assert!(reply.header("x-request-id").unwrap().starts_with("req-"));
        assert!(!reply.head.contains("access-control"), "{reply:?}");
    }
}

#[tokio::test]
async fn what_is_not_ready_says_why() {
    let rank = |node: &str, done| LoadingRank {
        node: node.to_owned(),
        done,
        total: 15,
        resident_bytes: 64,
    };
    let ranks = vec![rank("studio", 1), rank("mini", 2)];
    let table = [
        (Readiness::Loading { done: 3, total: 30, ranks }, "loading", "3 of 30 layers"),
        (Readiness::Draining, "draining", "stopping"),
        (
            Readiness::Short { reason: "mini is short of memory".to_owned() },
            "short_of_memory",
            "mini is short",
        ),
        (Readiness::Failed { reason: "rank 1 on mini stopped".to_owned() }, "failed", "on mini"),
    ];
    let mut fake = Fake::start().await;
    for (readiness, status, said) in table {
        fake.set(readiness);
        let ready = fake.ask(&get("/ready")).await;
        assert_eq!(ready.status, 503);
        assert_eq!(ready.json()["status"], status);
        if status == "loading" {
            let rank = |rank: u32, node: &str, done: u32| {
                serde_json::json!({"rank": rank, "node": node, "done": done, "total": 15,
                                   "resident_bytes": 64})
            };
            let ranks = [rank(0, "studio", 1), rank(1, "mini", 2)];
            let progress = serde_json::json!({"done": 3, "total": 30, "ranks": ranks});
            assert_eq!(ready.json()["progress"], progress);
        }
        for more in ["", r#","stream":true"#] {
            let refused = fake.ask(&post(chat(more))).await;
            for reply in [&ready, &refused] {
                assert_eq!(reply.status, 503);
                assert!(reply.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
                assert!(reply.error().2.contains(said), "{reply:?}");
            }
        }
        // A wrong request is wrong in any state, and this process lives in any state.
        assert_eq!(fake.ask(&post(chat(r#","top_k":-1"#))).await.status, 400);
        assert_eq!(fake.ask(&get("/health")).await.status, 200);
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing reached the node");
}

/// No sockets here: the clock stands still but for the waits of the stream itself.
#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive() {
    let (submit, mut submissions) = mpsc::channel(1);
    let model = Arc::new(ServedModel { id: "m".to_owned(), context: 1, created: 0 });
    let (_state, serving) = watch::channel(Serving { model, readiness: Readiness::Ready });
    let request = ChatRequest {
        id: "chatcmpl-1".to_owned(),
        conversation: Conversation::default(),
        parallel_calls: true,
        max_tokens: None,
        sampling: Sampling::greedy(),
        seed: None,
        bias: Vec::new(),
        stop: Vec::new(),
        logprobs: None,
    };
    let source = Source::submit(Handle { submit, state: serving }, request);
    let label = Label { id: "chatcmpl-1".to_owned(), model: "m".to_owned(), created: 0 };
    let mut stream = Box::pin(events(label, source, None, false));
    let mut next =
        async || String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();

    assert!(next().await.contains(r#""role":"assistant""#));
    // While it waits for the node's answer, and then for the first token.
    for _ in 0..2 {
        let start = Instant::now();
        assert_eq!(next().await, ": keep-alive\n\n");
        assert_eq!(start.elapsed(), KEEP_ALIVE);
        if let Ok(submission) = submissions.try_recv() {
            let (events, receiver) = mpsc::channel(8);
            let generation = Generation { prompt_tokens: 1, seed: 0, events: receiver };
            submission.reply.send(Ok(generation)).unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(KEEP_ALIVE * 3 / 2).await;
                events.send(text("late")).await.unwrap();
                events.send(finished(FinishReason::Stop)).await.unwrap();
            });
        }
    }
    assert!(next().await.contains(r#"{"content":"late"}"#));
    assert!(next().await.contains(r#""finish_reason":"stop""#));
    assert_eq!(next().await, "data: [DONE]\n\n");
    assert!(stream.next().await.is_none());
}
