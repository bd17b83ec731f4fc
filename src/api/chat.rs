//! `POST /v1/chat/completions`: body in, answer out, whole or as a stream.
//!
//! The status of an answer is decided by what is known when it starts. A whole answer waits for its
//! end. A stream waits for its first token, but no longer than until the first sign of life is due:
//! so a request that fails early gets a status, and one that waits long gets its headers.

use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use daisy_proto::local::Timings;
use futures::Future;
use tokio::time::timeout;

use crate::node::handle::{ChatRequest, Delta, Generation, GenerationEvent, Handle, SubmitError};

use super::App;
use super::body;
use super::error::{ApiError, not_ready};
use super::guard::{RequestId, completion_id};
use super::parse::{self, Chat, Delivery};
use super::stream::{KEEP_ALIVE, events};
use super::wire::{
    Call, Choice, Completion, FINGERPRINT, Logprobs, Message, Spent, Usage, finish_word,
};

pub async fn completions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    if *app.stopping.borrow() {
        return Err(ApiError::stopping());
    }
    let serving = app.handle.serving();
    let received = body::receive(&headers, body, &app.large_bodies).await?;
    let chat = parse::chat(&received.bytes, &serving.model, completion_id(&id))?;
    drop(received);
    // A wrong request is told so even while the model loads. The body may have taken its time.
    if let Some(unavailable) = not_ready(&app.handle.serving().readiness) {
        return Err(unavailable);
    }
    let Chat { request, delivery } = chat;
    let label =
        Label { id: request.id.clone(), model: serving.model.id.clone(), created: unix_seconds() };
    let wants_logprobs = request.logprobs.is_some();
    let source = Source::submit(app.handle, request);
    match delivery {
        Delivery::Whole => whole(label, source, wants_logprobs).await,
        Delivery::Stream { include_usage } => stream(label, source, include_usage).await,
    }
}

/// What every piece of one answer carries.
#[derive(Debug)]
pub struct Label {
    pub id: String,
    pub model: String,
    pub created: u64,
}

async fn whole(
    label: Label,
    mut source: Source,
    wants_logprobs: bool,
) -> Result<Response, ApiError> {
    let mut answer = Delta::default();
    let end = loop {
        match source.next().await? {
            Piece::Delta(delta) => answer.append(delta),
            Piece::End(end) => break end,
        }
    };
    let calls = answer.calls.iter().enumerate();
    let message = Message {
        role: "assistant",
        content: Some(answer.text.as_str())
            .filter(|text| !text.is_empty() || answer.calls.is_empty()),
        reasoning_content: Some(answer.reasoning.as_str()).filter(|text| !text.is_empty()),
        tool_calls: calls.map(|(at, call)| Call::new(&label.id, at, call)).collect(),
        refusal: (),
    };
    let logprobs = wants_logprobs.then(|| Logprobs::new(answer.tokens));
    let completion = Completion {
        id: &label.id,
        object: "chat.completion",
        created: label.created,
        model: &label.model,
        system_fingerprint: FINGERPRINT,
        choices: [Choice { index: 0, message, logprobs, finish_reason: end.reason }],
        usage: end.usage,
        timings: Spent::new(end.timings, end.usage),
    };
    Ok(Json(completion).into_response())
}

async fn stream(
    label: Label,
    mut source: Source,
    include_usage: bool,
) -> Result<Response, ApiError> {
    let first = match timeout(KEEP_ALIVE, source.next()).await {
        Ok(piece) => Some(piece?),
        Err(_) => None,
    };
    let body = Body::from_stream(events(label, source, first, include_usage));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, body).into_response())
}

/// Where an answer's pieces come from. Dropping it cancels the request, wherever it is.
pub struct Source {
    id: String,
    state: SourceState,
    has_calls: bool,
}

enum SourceState {
    Submitting(Pin<Box<dyn Future<Output = Result<Generation, SubmitError>> + Send>>),
    Running(Generation),
    Ended,
}

/// A piece of an answer.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// Never empty.
    Delta(Delta),
    End(End),
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub reason: &'static str,
    pub usage: Usage,
    pub timings: Timings,
}

impl Source {
    pub fn submit(handle: Handle, request: ChatRequest) -> Self {
        let id = request.id.clone();
        let submitting = Box::pin(async move { handle.submit(request).await });
        Self { id, state: SourceState::Submitting(submitting), has_calls: false }
    }

    /// The next piece. Safe to drop and to ask again; after an end or an error nothing follows.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        let piece = self.piece().await;
        match &piece {
            Ok(Piece::Delta(_)) => {}
            Ok(Piece::End(end)) => {
                self.state = SourceState::Ended;
                tracing::info!(id = self.id, reason = end.reason, usage = ?end.usage, "answered");
            }
            Err(error) => {
                self.state = SourceState::Ended;
                tracing::warn!(id = self.id, %error.status, error.message, "not answered");
            }
        }
        piece
    }

    async fn piece(&mut self) -> Result<Piece, ApiError> {
        loop {
            let generation = match &mut self.state {
                SourceState::Submitting(submitting) => {
                    self.state = SourceState::Running(submitting.await?);
                    continue;
                }
                SourceState::Running(generation) => generation,
                SourceState::Ended => return Err(ApiError::failed("the request has ended")),
            };
            let Some(event) = generation.events.recv().await else {
                return Err(ApiError::failed("the node gave the request up without a reason"));
            };
            match event {
                GenerationEvent::Delta(delta) if delta.is_empty() => {}
                GenerationEvent::Delta(delta) => {
                    self.has_calls |= !delta.calls.is_empty();
                    return Ok(Piece::Delta(delta));
                }
                GenerationEvent::Failed(reason) => return Err(ApiError::failed(reason)),
                GenerationEvent::Finished { reason, completion_tokens, timings } => {
                    let usage = Usage::new(generation.prompt_tokens, completion_tokens);
                    let reason = finish_word(reason, self.has_calls).ok_or_else(|| {
                        ApiError::failed("the request was cancelled: this endpoint is stopping")
                    })?;
                    return Ok(Piece::End(End { reason, usage, timings }));
                }
            }
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if !matches!(self.state, SourceState::Ended) {
            tracing::info!(id = self.id, "the client left; the request is cancelled");
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
