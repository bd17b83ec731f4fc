//! An answer as server-sent events: the role; reasoning, text and tool calls as they come; the reason
//! of the end, the usage if it was asked for, `[DONE]`. While nothing comes, a comment every [`KEEP_ALIVE`].
//!
//! An answer that fails after its stream began ends with an error event and without `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream::unfold;
use serde::Serialize;
use tokio::time::timeout;

use crate::node::handle;

use super::chat::{End, Label, Piece, Source};
use super::error::ApiError;
use super::wire::{Call, Chunk, ChunkChoice, Delta, FINGERPRINT, Logprobs, Spent, UsageSlot};

/// The longest silence on a stream.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The bytes of the stream; `first` is a piece that was waited for already.
pub fn events(
    label: Label,
    source: Source,
    first: Option<Piece>,
    include_usage: bool,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let due = VecDeque::new();
    let mut answer = Answer { label, source: Some(source), include_usage, calls: 0, due };
    answer.role();
    if let Some(piece) = first {
        answer.piece(Ok(piece));
    }
    unfold(answer, |mut answer| async move { Some((Ok(answer.next().await?), answer)) })
}

struct Answer {
    label: Label,
    /// None once nothing more will come.
    source: Option<Source>,
    include_usage: bool,
    /// Calls so far.
    calls: usize,
    /// Events to send before the source is asked again: at most four, and one for each call of a piece.
    due: VecDeque<Bytes>,
}

impl Answer {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(event) = self.due.pop_front() {
            return Some(event);
        }
        let source = self.source.as_mut()?;
        match timeout(KEEP_ALIVE, source.next()).await {
            Ok(piece) => self.piece(piece),
            Err(_) => return Some(Bytes::from_static(COMMENT)),
        }
        self.due.pop_front()
    }

    fn piece(&mut self, piece: Result<Piece, ApiError>) {
        match piece {
            Ok(Piece::Delta(delta)) => self.delta(delta),
            Ok(Piece::End(end)) => {
                self.source = None;
                self.end(end);
            }
            Err(error) => {
                self.source = None;
                self.due.push_back(event(&error.body()));
            }
        }
    }

    /// Thoughts, words and each call in an event of its own; log probabilities are in the first.
    fn delta(&mut self, delta: handle::Delta) {
        let handle::Delta { text, reasoning, calls, tokens } = delta;
        let mut logprobs = Some(tokens).filter(|tokens| !tokens.is_empty()).map(Logprobs::new);
        let id = self.label.id.clone();
        let mut deltas = Vec::with_capacity(calls.len() + 2);
        if !reasoning.is_empty() {
            deltas.push(Delta { reasoning_content: Some(&reasoning), ..Delta::default() });
        }
        if !text.is_empty() || (reasoning.is_empty() && calls.is_empty()) {
            deltas.push(Delta { content: Some(&text), ..Delta::default() });
        }
        for call in &calls {
            let tool_calls = vec![Call::streamed(&id, self.calls, call)];
            deltas.push(Delta { tool_calls, ..Delta::default() });
            self.calls += 1;
        }
        for delta in deltas {
            let logprobs = logprobs.take();
            self.choice(ChunkChoice { delta, logprobs, ..ChunkChoice::default() });
        }
    }

    fn role(&mut self) {
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        self.choice(ChunkChoice { delta, ..ChunkChoice::default() });
    }

    fn end(&mut self, end: End) {
        let spent = Spent::new(end.timings, end.usage);
        let choice = ChunkChoice { finish_reason: Some(end.reason), ..ChunkChoice::default() };
        self.chunk(&[choice], self.no_usage(), Some(spent));
        if self.include_usage {
            self.chunk(&[], UsageSlot::Counted(end.usage), None);
        }
        self.due.push_back(Bytes::from_static(DONE));
    }

    fn choice(&mut self, choice: ChunkChoice<'_>) {
        self.chunk(&[choice], self.no_usage(), None);
    }

    fn no_usage(&self) -> UsageSlot {
        if self.include_usage { UsageSlot::Null } else { UsageSlot::Absent }
    }

    fn chunk(&mut self, choices: &[ChunkChoice<'_>], usage: UsageSlot, timings: Option<Spent>) {
        let event = event(&Chunk {
            id: &self.label.id,
            object: "chat.completion.chunk",
            created: self.label.created,
            model: &self.label.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            timings,
        });
        self.due.push_back(event);
    }
}

/// JSON holds no line break outside its strings' escapes, so one `data:` line is enough.
fn event(value: &impl Serialize) -> Bytes {
    let mut bytes = b"data: ".to_vec();
    serde_json::to_writer(&mut bytes, value).expect("answers are plain structs with string keys");
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

const COMMENT: &[u8] = b": keep-alive\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";
