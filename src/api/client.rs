//! The other side of an OpenAI-style endpoint: what `daisy chat` speaks. It blocks, and works with
//! any server of that kind over plain HTTP.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;

/// An endpoint by its address up to `/v1`.
#[derive(Debug, Clone)]
pub struct Client {
    base: String,
    key: Option<String>,
    agent: Agent,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The model thinks before it speaks.
    Thought(String),
    Text(String),
}

/// How an answer is to be made; none leaves it to the server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub model: Option<String>,
    pub max_tokens: Option<u32>,
    pub temperature: Option<f32>,
}

/// What the server counted, where it says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{url} cannot be reached: {source}; is `daisy cluster serve` running there?")]
    Unreachable { url: String, source: Box<ureq::Error> },
    #[error("{url} answered {status}: {message}")]
    Refused { url: String, status: u16, message: String },
    #[error("the answer broke off: {0}")]
    Stream(String),
    #[error("{url} does not speak OpenAI's API: {reason}")]
    Foreign { url: String, reason: String },
}

impl Client {
    pub fn new(base: &str, key: Option<String>) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_MAX))
            .build()
            .into();
        Self { base: base.trim_end_matches('/').to_owned(), key, agent }
    }

    /// The models that the endpoint serves.
    pub fn models(&self) -> Result<Vec<String>, ClientError> {
        let url = format!("{}/models", self.base);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let answer = request.call().map_err(|error| unreachable(&url, error))?;
        let list = body(&url, answer)?;
        let data = list["data"].as_array().ok_or_else(|| foreign(&url, "no list of models"))?;
        Ok(data.iter().filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
    }

    /// Streams the answer to a conversation: each piece goes to `on_piece`, which may stop it. Leaving early closes the connection, so the server stops too.
    pub fn chat(
        &self,
        messages: &[ChatMessage],
        options: &Options,
        on_piece: &mut dyn FnMut(Said) -> ControlFlow<()>,
    ) -> Result<Counted, ClientError> {
        let url = format!("{}/chat/completions", self.base);
        let mut request = self.agent.post(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let answer = request
            .send_json(request_body(messages, options))
            .map_err(|error| unreachable(&url, error))?;
        if answer.status().as_u16() != 200 {
            return body(&url, answer).map(|_| Counted::default());
        }
        read_stream(BufReader::new(answer.into_body().into_reader()), on_piece)
    }
}

fn request_body(messages: &[ChatMessage], options: &Options) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| json!({"role": message.role, "content": message.content}))
        .collect();
    let mut body = json!({
        "model": options.model.as_deref().unwrap_or("default"),
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if let Some(max_tokens) = options.max_tokens {
        body["max_tokens"] = json!(max_tokens);
    }
    if let Some(temperature) = options.temperature {
        body["temperature"] = json!(temperature);
    }
    body
}

/// The JSON of a whole answer; an error in OpenAI's shape becomes its message.
fn body(url: &str, mut answer: ureq::http::Response<ureq::Body>) -> Result<Value, ClientError> {
    let status = answer.status().as_u16();
    let text = answer
        .body_mut()
        .with_config()
        .limit(BODY_BYTES_MAX)
        .read_to_string()
        .map_err(|error| foreign(url, &error.to_string()))?;
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status == 200 {
        return Ok(value);
    }
    let message = value["error"]["message"].as_str().unwrap_or(text.trim()).to_owned();
    Err(ClientError::Refused { url: url.to_owned(), status, message })
}

/// Server-sent events until `[DONE]`.
fn read_stream(
    mut stream: impl BufRead,
    on_piece: &mut dyn FnMut(Said) -> ControlFlow<()>,
) -> Result<Counted, ClientError> {
    let broken = |why: &str| ClientError::Stream(why.to_owned());
    let mut counted = Counted::default();
    loop {
        let mut line = Vec::new();
        let read = (&mut stream)
            .take(EVENT_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .map_err(|error| broken(&error.to_string()))?;
        if read == 0 {
            return Err(broken("the server closed the connection"));
        }
        let line = String::from_utf8_lossy(&line);
        let Some(data) = line.trim_end().strip_prefix("data:") else { continue };
        if data.trim() == "[DONE]" {
            return Ok(counted);
        }
        let event: Value =
            serde_json::from_str(data).map_err(|_| broken("an event is not JSON"))?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(broken(message));
        }
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
            counted.prompt_tokens = count("prompt_tokens");
            counted.completion_tokens = count("completion_tokens");
        }
        let delta = &event["choices"][0]["delta"];
        let piece = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        let thought = piece("reasoning_content").or_else(|| piece("reasoning"));
        let thought = thought.map(|text| Said::Thought(text.to_owned()));
        let text = piece("content").map(|text| Said::Text(text.to_owned()));
        for said in thought.into_iter().chain(text) {
            if on_piece(said).is_break() {
                return Ok(counted);
            }
        }
    }
}

fn unreachable(url: &str, source: ureq::Error) -> ClientError {
    ClientError::Unreachable { url: url.to_owned(), source: Box::new(source) }
}

fn foreign(url: &str, reason: &str) -> ClientError {
    ClientError::Foreign { url: url.to_owned(), reason: reason.to_owned() }
}

const CONNECT_MAX: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: u64 = 16 << 20;
/// One event holds a few tokens; a server that sends more in one line is none of ours.
const EVENT_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str) -> (String, Result<Counted, ClientError>) {
        let mut text = String::new();
        let outcome = read_stream(stream.as_bytes(), &mut |piece| {
            match piece {
                Said::Thought(thought) => text.extend(["(", &thought, ")"]),
                Said::Text(more) => text.push_str(&more),
            }
            ControlFlow::Continue(())
        });
        (text, outcome)
    }

    #[test]
    fn a_stream_gives_its_text_and_its_counts() {
        let (text, outcome) = read(concat!(
            ": keep-alive\n\n",
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning\":\"m\",\"content\":\"Hi \"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"there\"}}],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
            "data: [DONE]\n\n",
        ));
        assert_eq!(text, "(Hm)(m)Hi there");
        let counted = outcome.expect("whole");
        assert_eq!(counted, Counted { prompt_tokens: 3, completion_tokens: 2 });
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        for (stream, expected) in [
            ("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "closed the connection"),
            ("data: {\"error\":{\"message\":\"rank 1 on mini is gone\"}}\n\n", "mini"),
            ("data: nonsense\n\n", "not JSON"),
        ] {
            let error = read(stream).1.expect_err("broken off").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_reader_can_stop_an_answer() {
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let mut pieces = 0;
        let outcome = read_stream(event.repeat(9).as_bytes(), &mut |_| {
            pieces += 1;
            if pieces == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(outcome.is_ok());
        assert_eq!(pieces, 2);
    }
}
