//! What the HTTP side sees of a node: one handle. It knows neither ranks nor peers, and the node
//! behind it knows nothing of HTTP; JSON it knows as what a chat template is given.

use std::sync::Arc;

use daisy_proto::Sampling;
use daisy_proto::local::{FinishReason, Timings};
use tokio::sync::{mpsc, oneshot, watch};

pub use crate::text::{Conversation, ToolCall};

/// Submissions that wait for the node's loop; the request queue proper is the node's.
pub const SUBMISSIONS_MAX: usize = 64;
/// Events that a request may hold before its reader is waited for.
pub const EVENTS_MAX: usize = 256;

/// A cloneable door to a serving node.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) submit: mpsc::Sender<Submission>,
    pub(crate) state: watch::Receiver<Serving>,
}

/// A request on its way to the node's loop.
#[derive(Debug)]
pub struct Submission {
    pub request: ChatRequest,
    pub reply: oneshot::Sender<Result<Generation, SubmitError>>,
}

/// What is served, and whether it can answer now.
#[derive(Debug, Clone)]
pub struct Serving {
    pub model: Arc<ServedModel>,
    pub readiness: Readiness,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The checkpoint's name: its directory, or `ORG/NAME`.
    pub id: String,
    pub context: u32,
    /// Unix seconds at which serving began.
    pub created: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Loading {
        done: u32,
        total: u32,
        /// In their order.
        ranks: Vec<LoadingRank>,
    },
    Draining,
    /// A machine is short of memory: what runs goes on, and nothing new comes in. `reason` names it.
    Short {
        reason: String,
    },
    /// The pipeline failed; `reason` names the node.
    Failed {
        reason: String,
    },
}

/// How far one rank has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadingRank {
    pub node: String,
    /// Layers in memory.
    pub done: u32,
    pub total: u32,
    pub resident_bytes: u64,
}

/// A valid chat request: bounds were checked where the JSON was parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// Unique; also in the response's header, body and logs.
    pub id: String,
    /// Where it has tools, their calls are looked for in the answer.
    pub conversation: Conversation,
    /// Whether the answer may hold more than one call.
    pub parallel_calls: bool,
    /// None: what the context leaves.
    pub max_tokens: Option<u32>,
    /// But for its seed, which is set at admission.
    pub sampling: Sampling,
    /// None: one is drawn at admission.
    pub seed: Option<u64>,
    /// Added to the logits of these tokens, each once.
    pub bias: Vec<(u32, f32)>,
    /// The answer ends before the first of these. None is empty.
    pub stop: Vec<String>,
    /// With each token its log probability and those of this many of the likeliest; none: neither.
    pub logprobs: Option<u32>,
}

/// A request that was admitted. Dropping it cancels the sequence on every rank.
#[derive(Debug)]
pub struct Generation {
    pub prompt_tokens: u32,
    pub seed: u64,
    pub events: mpsc::Receiver<GenerationEvent>,
}

/// More of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// What the model says. Never half a character, and nothing of a stop string.
    pub text: String,
    /// What it thought before.
    pub reasoning: String,
    /// Whole calls, in their order.
    pub calls: Vec<ToolCall>,
    /// The tokens whose text is all there now, if log probabilities were asked for.
    pub tokens: Vec<TokenLikelihood>,
}

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenText {
    /// Perhaps half a character.
    Bytes(Vec<u8>),
    /// A special token is no text: it has but a name.
    Special(String),
}

/// How likely a token was, and which were the likeliest in its place, those first that were more so.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLikelihood {
    pub drawn: Likelihood,
    pub top: Vec<Likelihood>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    pub token: TokenText,
    /// Natural logarithm of the probability that the model gave it.
    pub logprob: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    Delta(Delta),
    Finished {
        reason: FinishReason,
        completion_tokens: u32,
        timings: Timings,
    },
    /// The pipeline failed under the request; nothing follows. The message names the node.
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// 400: the request itself is wrong.
    #[error("{message}")]
    Invalid { param: &'static str, message: String },
    /// 429 with Retry-After.
    #[error("{waiting} requests are waiting already; try again in {retry_after_s} s")]
    QueueFull { waiting: usize, retry_after_s: u32 },
    /// 503 with the reason.
    #[error("{0}")]
    NotReady(String),
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.reasoning.is_empty()
            && self.calls.is_empty()
            && self.tokens.is_empty()
    }

    pub fn append(&mut self, mut more: Self) {
        self.text.push_str(&more.text);
        self.reasoning.push_str(&more.reasoning);
        self.calls.append(&mut more.calls);
        self.tokens.append(&mut more.tokens);
    }
}

impl Readiness {
    /// Whether a request may enter now.
    pub fn check(&self) -> Result<(), SubmitError> {
        let why = match self {
            Self::Ready => return Ok(()),
            Self::Loading { done, total, .. } => {
                format!("the model is loading: {done} of {total} layers are in memory")
            }
            Self::Draining => "this node is about to stop serving".to_owned(),
            Self::Short { reason } | Self::Failed { reason } => reason.clone(),
        };
        Err(SubmitError::NotReady(why))
    }
}

impl Handle {
    /// What is served and how it is.
    pub fn serving(&self) -> Serving {
        self.state.borrow().clone()
    }

    /// Hands a request to the node.
    ///
    /// # Errors
    /// See [`SubmitError`]; a node that is gone is `NotReady`.
    pub async fn submit(&self, request: ChatRequest) -> Result<Generation, SubmitError> {
        // Before the pipeline is ready nobody reads the submissions.
        self.state.borrow().readiness.check()?;
        let (reply, answer) = oneshot::channel();
        let gone = || SubmitError::NotReady("this node has stopped serving".to_owned());
        self.submit.send(Submission { request, reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
