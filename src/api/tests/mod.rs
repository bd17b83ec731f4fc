//! The real server on a free port, with a fake node behind its handle and a client that speaks
//! plain HTTP/1.1 over a socket, so that every byte is seen.

mod answers;
mod connections;
mod openai;
mod refusals;
mod templates;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::local::{FinishReason, Timings};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::node::handle::{
    Delta, EVENTS_MAX, Generation, GenerationEvent, Handle, Likelihood, Readiness, ServedModel,
    Serving, Submission, SubmitError, TokenLikelihood, TokenText,
};

/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server and the node's side of its handle.
struct Fake {
    addr: SocketAddr,
    submissions: mpsc::Receiver<Submission>,
    state: watch::Sender<Serving>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Fake {
    async fn start() -> Self {
        let (submit, submissions) = mpsc::channel(8);
        let model =
            Arc::new(ServedModel { id: "org/tiny".to_owned(), context: 2048, created: 1234 });
        let (state, serving) = watch::channel(Serving { model, readiness: Readiness::Ready });
        let handle = Handle { submit, state: serving };
        let listener = super::bind("127.0.0.1", 0).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(super::run(listener, handle, async {
            let _ = stopped.await;
        }));
        Self { addr, submissions, state, stop: Some(stop), running }
    }

    fn set(&self, readiness: Readiness) {
        self.state.send_modify(|serving| serving.readiness = readiness);
    }

    async fn submission(&mut self) -> Submission {
        timeout(PATIENCE, self.submissions.recv()).await.unwrap().unwrap()
    }

    /// Admits the next submission; the events are sent by the test.
    async fn admit(&mut self) -> mpsc::Sender<GenerationEvent> {
        let submission = self.submission().await;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let generation = Generation { prompt_tokens: 11, seed: 3, events: receiver };
        submission.reply.send(Ok(generation)).unwrap();
        events
    }

    async fn admit_with(&mut self, answer: impl IntoIterator<Item = GenerationEvent>) {
        let events = self.admit().await;
        for event in answer {
            events.send(event).await.unwrap();
        }
    }

    async fn refuse(&mut self, error: SubmitError) {
        self.submission().await.reply.send(Err(error)).unwrap();
    }

    /// A connection on which `request` was sent.
    async fn send(&self, request: &[u8]) -> Client {
        let mut socket = TcpStream::connect(self.addr).await.unwrap();
        socket.write_all(request).await.unwrap();
        Client { socket, read: Vec::new() }
    }

    async fn ask(&self, request: &[u8]) -> Reply {
        self.send(request).await.reply().await
    }
}

fn text(text: &str) -> GenerationEvent {
    GenerationEvent::Delta(Delta { text: text.to_owned(), ..Delta::default() })
}

/// A token with its text, and likelihoods of it and of another.
fn token(text: &str, bytes: &[u8], logprob: f32) -> GenerationEvent {
    let drawn = Likelihood { token: TokenText::Bytes(bytes.to_vec()), logprob };
    let special = TokenText::Special("<end>".to_owned());
    let other = Likelihood { token: special, logprob: f32::NEG_INFINITY };
    let tokens = vec![TokenLikelihood { top: vec![drawn.clone(), other], drawn }];
    GenerationEvent::Delta(Delta { text: text.to_owned(), tokens, ..Delta::default() })
}

fn finished(reason: FinishReason) -> GenerationEvent {
    let timings = Timings { queue_us: 500, prefill_us: 22_000, decode_us: 10_000 };
    GenerationEvent::Finished { reason, completion_tokens: 3, timings }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").into_bytes()
}

fn post(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8100\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// A good body with more fields.
fn chat(more: &str) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"hi"}}]{more}}}"#)
}

/// The client's end of one connection.
struct Client {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Client {
    /// Everything until the server closes.
    async fn reply(mut self) -> Reply {
        timeout(PATIENCE, self.socket.read_to_end(&mut self.read)).await.unwrap().unwrap();
        Reply::parse(&self.read)
    }

    /// Reads until `needle` has come.
    async fn wait_for(&mut self, needle: &str) {
        while !String::from_utf8_lossy(&self.read).contains(needle) {
            let count =
                timeout(PATIENCE, self.socket.read_buf(&mut self.read)).await.unwrap().unwrap();
            assert_ne!(count, 0, "closed before {needle:?}");
        }
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks the error shape and gives `code`, `param` and `message`.
    fn error(&self) -> (String, Option<String>, String) {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("{self:?}"));
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        let kind = match self.status {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        assert_eq!(error["type"], kind);
        assert!(self.header("x-request-id").is_some(), "{self:?}");
        let string = |name: &str| error[name].as_str().map(str::to_owned);
        (string("code").unwrap(), string("param"), string("message").unwrap())
    }
}

/// Undoes the chunked transfer coding; a body that was cut off panics.
fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
}
