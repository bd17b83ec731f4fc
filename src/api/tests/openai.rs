//! OpenAI's own client at the real server: what a model that thinks and calls tools would say is
//! written here. `scripts/check api` brings the client.

use tokio::process::Command;

use super::*;
use crate::node::handle::{ChatRequest, ToolCall};

/// A Python that has the package `openai`.
const PYTHON: &str = "DAISY_TEST_OPENAI";

#[tokio::test]
async fn openai_client_reads_reasoning_and_calls() {
    let Some(python) = std::env::var_os(PYTHON) else {
        println!("SKIP openai client with tools: {PYTHON} is not set");
        return;
    };
    let mut fake = Fake::start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/openai_tools.py");
    let url = format!("http://{}/v1", fake.addr);
    let mut client =
        Box::pin(Command::new(python).arg(script).arg(url).kill_on_drop(true).output());
    let ended = timeout(PATIENCE * 6, async {
        loop {
            tokio::select! {
                ended = &mut client => return ended,
                Some(submission) = fake.submissions.recv() => answer(submission).await,
            }
        }
    });
    let output = ended.await.expect("in time").expect("a client");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn answer(submission: Submission) {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let generation = Generation { prompt_tokens: 1, seed: 0, events: receiver };
    let deltas = deltas(&submission.request);
    submission.reply.send(Ok(generation)).expect("a client that waits");
    for delta in deltas {
        events.send(GenerationEvent::Delta(delta)).await.expect("a client that reads");
    }
    events.send(finished(FinishReason::Stop)).await.expect("a client that reads");
}

/// What is said to the last message.
fn deltas(request: &ChatRequest) -> Vec<Delta> {
    let messages = &request.conversation.messages;
    let last = messages.last().expect("a message");
    let text = |text: &str| Delta { text: text.to_owned(), ..Delta::default() };
    let thought = |text: &str| Delta { reasoning: text.to_owned(), ..Delta::default() };
    let call = |city: &str| {
        let arguments = serde_json::json!({ "city": city }).to_string();
        let call = ToolCall { name: "get_weather".to_owned(), arguments };
        Delta { calls: vec![call], ..Delta::default() }
    };
    match (last["role"].as_str(), last["content"].as_str()) {
        (Some("user"), Some("think")) => vec![thought("Let me "), thought("think."), text("Grün.")],
        (Some("user"), Some("call")) => vec![call("Zürich"), call("\"Bern\"")],
        (Some("tool"), _) => {
            // The calls came back as templates read them, and the results name them.
            let calls = &messages[1]["tool_calls"];
            assert_eq!(calls[0]["function"]["arguments"]["city"], "Zürich");
            assert_eq!(last["tool_call_id"], calls[1]["id"]);
            vec![text("Warm.")]
        }
        other => panic!("{other:?}"),
    }
}
