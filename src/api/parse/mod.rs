//! What a client sent, made into a valid request once. Pure: bytes in, request or error out.
//!
//! The rules: a known field with null has its default, a required one must be there; a wrong type
//! or range is an error that names field, bound and value; a field that would change the answer and
//! cannot be honoured yet is refused by name ([`refused`]); unknown fields are ignored. Of a key
//! that is there twice, the last counts.
//!
//! Start at [`chat`].

mod field;
mod messages;
mod refused;
mod sampling;
#[cfg(test)]
mod tests;
mod tools;

use serde_json::Value;

use crate::node::handle::{ChatRequest, Conversation, ServedModel};

use field::{Fields, given};

/// A valid request and how its answer is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    pub request: ChatRequest,
    pub delivery: Delivery,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    Stream { include_usage: bool },
}

/// Why a body is no valid request.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("the body is not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("the body must be a JSON object, got {given}")]
    NotAnObject { given: String },
    #[error("{param} is required: {wanted}")]
    Missing { param: String, wanted: String },
    #[error("{param} must be {wanted}, got {given}")]
    Wrong { param: String, wanted: String, given: String },
    #[error("{param} is not supported yet; leave it out or send {harmless}, got {given}")]
    Unsupported { param: String, harmless: &'static str, given: String },
    #[error(
        "the model {asked:?} is not served here; served: {served:?} (also as \"default\"{})",
        short_name(served).map(|name| format!(" or {name:?}")).unwrap_or_default()
    )]
    UnknownModel { asked: String, served: String },
}

impl ParseError {
    /// The field at fault, as a path: `messages[2].content`.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Json(_) | Self::NotAnObject { .. } => None,
            Self::Missing { param, .. }
            | Self::Wrong { param, .. }
            | Self::Unsupported { param, .. } => Some(param),
            Self::UnknownModel { .. } => Some("model"),
        }
    }
}

/// Reads the body of `POST /v1/chat/completions`.
pub fn chat(body: &[u8], served: &ServedModel, id: String) -> Result<Chat, ParseError> {
    // serde_json refuses more than 128 levels, numbers beyond a double and bytes that are no UTF-8.
    let value: Value = serde_json::from_slice(body).map_err(ParseError::Json)?;
    let Value::Object(object) = &value else {
        return Err(ParseError::NotAnObject { given: given(&value) });
    };
    let fields = Fields::of_body(object);

    let model = fields.required("model", "the name of the model, or \"default\"")?;
    let Value::String(model) = model else {
        return Err(fields.wrong("model", "a string", model));
    };
    if !names_model(model, served) {
        let (asked, served) = (shortened(model), served.id.clone());
        return Err(ParseError::UnknownModel { asked, served });
    }
    refused::check(&fields)?;
    Ok(Chat {
        request: ChatRequest {
            id,
            conversation: Conversation {
                messages: messages::read(fields.required("messages", messages::WANTED)?)?,
                tools: tools::tools(&fields)?,
                variables: tools::template_variables(&fields)?,
            },
            parallel_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
            max_tokens: max_tokens(&fields)?,
            sampling: sampling::sampling(&fields)?,
            seed: sampling::seed(&fields)?,
            bias: sampling::logit_bias(&fields)?,
            stop: sampling::stop(&fields)?,
            logprobs: sampling::logprobs(&fields)?,
        },
        delivery: delivery(&fields)?,
    })
}

/// Whether `name` means what is served: its id, the id's last part, or `default`.
pub fn names_model(name: &str, served: &ServedModel) -> bool {
    name == served.id || name == "default" || short_name(&served.id) == Some(name)
}

/// `NAME` of `ORG/NAME`.
fn short_name(id: &str) -> Option<&str> {
    id.trim_end_matches('/').rsplit_once('/').map(|(_, name)| name)
}

/// The older field and the newer one mean the same here.
fn max_tokens(fields: &Fields<'_>) -> Result<Option<u32>, ParseError> {
    let older = fields.whole("max_tokens", 1)?;
    let newer = fields.whole("max_completion_tokens", 1)?;
    match (older, newer) {
        (Some(older), Some(newer)) if older != newer => Err(ParseError::Wrong {
            param: "max_tokens".to_owned(),
            wanted: format!("left out or equal to max_completion_tokens, which is {newer}"),
            given: older.to_string(),
        }),
        _ => Ok(newer.or(older)),
    }
}

fn delivery(fields: &Fields<'_>) -> Result<Delivery, ParseError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.optional("stream_options") else {
        return Ok(if stream {
            Delivery::Stream { include_usage: false }
        } else {
            Delivery::Whole
        });
    };
    let Value::Object(inner) = options else {
        return Err(fields.wrong("stream_options", "an object", options));
    };
    let inner = Fields::inside("stream_options", inner);
    let include_usage = inner.boolean("include_usage")?.unwrap_or(false);
    if !stream {
        return Err(fields.wrong("stream_options", "left out unless stream is true", options));
    }
    Ok(Delivery::Stream { include_usage })
}

/// A client's text in an error: enough to recognise it.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

const SHOWN_CHARS_MAX: usize = 60;
