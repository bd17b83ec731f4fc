//! The JSON of answers. Field order is the order on the wire; tests hold it byte for byte.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use daisy_proto::local::{FinishReason, Timings};
use serde::Serialize;

use crate::node::handle::{Likelihood, ServedModel, TokenLikelihood, TokenText, ToolCall};

use super::error::ErrorFields;

/// A whole answer.
#[derive(Debug, Serialize)]
pub struct Completion<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'static str,
    pub choices: [Choice<'a>; 1],
    pub usage: Usage,
    pub timings: Spent,
}

#[derive(Debug, Serialize)]
pub struct Choice<'a> {
    pub index: u32,
    pub message: Message<'a>,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Message<'a> {
    pub role: &'static str,
    /// Null beside calls where nothing was said.
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Call<'a>>,
    pub refusal: (),
}

/// A call of a tool; in a stream with its place among the answer's calls.
#[derive(Debug, Serialize)]
pub struct Call<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Debug, Serialize)]
struct CalledFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> Call<'a> {
    /// The call at `at` of the answer `answer`.
    pub fn new(answer: &str, at: usize, call: &'a ToolCall) -> Self {
        let function = CalledFunction { name: &call.name, arguments: &call.arguments };
        Self { index: None, id: call_id(answer, at), r#type: "function", function }
    }

    /// The same as a part of a stream.
    pub fn streamed(answer: &str, at: usize, call: &'a ToolCall) -> Self {
        Self { index: Some(at), ..Self::new(answer, at, call) }
    }
}

/// Nine letters and digits, because Mistral's templates refuse any other id when it comes back.
/// Answers have unique ids, and so have their calls.
fn call_id(answer: &str, at: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (answer, at).hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut id = String::with_capacity(CALL_ID_CHARS);
    for _ in 0..CALL_ID_CHARS {
        id.push(char::from(CALL_ID_ALPHABET[(rest % 62) as usize]));
        rest /= 62;
    }
    id
}

/// One event of a stream.
#[derive(Debug, Serialize)]
pub struct Chunk<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'static str,
    /// Empty in the chunk that carries the usage.
    pub choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "UsageSlot::is_absent")]
    pub usage: UsageSlot,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Spent>,
}

#[derive(Debug, Default, Serialize)]
pub struct ChunkChoice<'a> {
    pub index: u32,
    pub delta: Delta<'a>,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: Option<&'static str>,
}

/// How likely the tokens of an answer, or of a piece of it, were.
#[derive(Debug, Serialize)]
pub struct Logprobs {
    content: Vec<TokenLogprobs>,
    refusal: (),
}

#[derive(Debug, Serialize)]
struct TokenLogprobs {
    #[serde(flatten)]
    drawn: Logprob,
    top_logprobs: Vec<Logprob>,
}

/// Half a character is U+FFFD in `token` and itself in `bytes`; a special token has no bytes.
#[expect(clippy::struct_field_names, reason = "the names are OpenAI's")]
#[derive(Debug, Serialize)]
struct Logprob {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

impl Logprobs {
    pub fn new(tokens: Vec<TokenLikelihood>) -> Self {
        let content = tokens.into_iter().map(|TokenLikelihood { drawn, top }| TokenLogprobs {
            drawn: Logprob::new(drawn),
            top_logprobs: top.into_iter().map(Logprob::new).collect(),
        });
        Self { content: content.collect(), refusal: () }
    }
}

impl Logprob {
    fn new(Likelihood { token, logprob }: Likelihood) -> Self {
        let (token, bytes) = match token {
            TokenText::Bytes(bytes) => (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes)),
            TokenText::Special(name) => (name, None),
        };
        // JSON has no infinity. This one's name for it is OpenAI's.
        Self { token, logprob: logprob.max(LEAST_LOGPROB), bytes }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Call<'a>>,
}

/// In a stream whose client asked for usage, every chunk but the last says `null`.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum UsageSlot {
    Absent,
    Null,
    Counted(Usage),
}

impl UsageSlot {
    // The signature is serde's.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "skip_serializing_if passes a reference")]
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(clippy::struct_field_names, reason = "these are OpenAI's names")]
pub struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
}

impl Usage {
    pub fn new(prompt_tokens: u32, completion_tokens: u32) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        Self { prompt_tokens, completion_tokens, total_tokens }
    }
}

/// Where the time went: a field of our own. Rates are null where there was no time to divide by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spent {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    prompt_tokens_per_second: Option<f64>,
    completion_tokens_per_second: Option<f64>,
}

impl Spent {
    pub fn new(timings: Timings, usage: Usage) -> Self {
        Self {
            queue_ms: ms(timings.queue_us),
            prefill_ms: ms(timings.prefill_us),
            decode_ms: ms(timings.decode_us),
            prompt_tokens_per_second: rate(usage.prompt_tokens, timings.prefill_us),
            // The first token is the prefill's.
            completion_tokens_per_second: rate(
                usage.completion_tokens.saturating_sub(1),
                timings.decode_us,
            ),
        }
    }
}

/// Exact up to 285 years, the range in which a double holds every whole number.
#[allow(clippy::cast_precision_loss, reason = "2^53 µs is 285 years")]
fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// Tokens per second with two decimals.
fn rate(tokens: u32, us: u64) -> Option<f64> {
    (us > 0).then(|| (f64::from(tokens) * 1e5 / ms(us)).round() / 1e2)
}

/// OpenAI's word; none for a sequence that did not end by itself. An answer that calls tools ended
/// for their sake.
pub fn finish_word(reason: FinishReason, has_calls: bool) -> Option<&'static str> {
    match reason {
        FinishReason::Stop if has_calls => Some("tool_calls"),
        FinishReason::Stop => Some("stop"),
        FinishReason::Length => Some("length"),
        FinishReason::Cancelled => None,
    }
}

#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    pub object: &'static str,
    pub data: [Model<'a>; 1],
}

#[derive(Debug, Serialize)]
pub struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    context_length: u32,
}

impl<'a> Model<'a> {
    pub fn new(served: &'a ServedModel) -> Self {
        Self {
            id: &served.id,
            object: "model",
            created: served.created,
            owned_by: "daisy",
            context_length: served.context,
        }
    }
}

/// What the probes say.
#[derive(Debug, Serialize)]
pub struct Ready<'a> {
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorFields<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Progress {
    /// Layers in memory, of all ranks.
    pub done: u32,
    pub total: u32,
    /// Empty until the first of them speaks.
    pub ranks: Vec<RankProgress>,
}

#[derive(Debug, Serialize)]
pub struct RankProgress {
    pub rank: usize,
    pub node: String,
    pub done: u32,
    pub total: u32,
    pub resident_bytes: u64,
}

/// Which build answered; with the seed it says whether two answers can be compared.
pub const FINGERPRINT: &str = concat!("daisy-", env!("CARGO_PKG_VERSION"));
/// What stands for the logarithm of a probability of 0.
const LEAST_LOGPROB: f32 = -9999.0;
const CALL_ID_CHARS: usize = 9;
const CALL_ID_ALPHABET: &[u8; 62] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
