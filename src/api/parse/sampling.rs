//! How the next token is to be drawn, what ends the answer, and what is told of its tokens.

use std::collections::BTreeMap;

use daisy_proto::Sampling;
use serde_json::Value;

use super::ParseError;
use super::field::{Fields, given};

/// The parameters of a draw; the seed is the admission's.
pub fn sampling(fields: &Fields<'_>) -> Result<Sampling, ParseError> {
    let penalty = |name| number(fields, name, "a number from -2 to 2", -2.0, 2.0);
    Ok(Sampling {
        temperature: temperature(fields)?,
        top_p: top_p(fields)?,
        top_k: fields.whole("top_k", 0)?.unwrap_or(0),
        min_p: number(fields, "min_p", "a number from 0 to 1", 0.0, 1.0)?.unwrap_or(0.0),
        repetition_penalty: number(
            fields,
            "repetition_penalty",
            "a number from 0.01 to 2",
            0.01,
            2.0,
        )?
        .unwrap_or(1.0),
        presence_penalty: penalty("presence_penalty")?.unwrap_or(0.0),
        frequency_penalty: penalty("frequency_penalty")?.unwrap_or(0.0),
        seed: 0,
    })
}

/// Every 64-bit number is a seed; a negative one is taken by its bits.
pub fn seed(fields: &Fields<'_>) -> Result<Option<u64>, ParseError> {
    let Some(value) = fields.optional("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    let wanted = format!("a whole number from {} to {}", i64::MIN, u64::MAX);
    seed.map(Some).ok_or_else(|| fields.wrong("seed", &wanted, value))
}

/// Token ids and what is added to their logits. Which ids there are only the node knows.
pub fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ParseError> {
    let Some(value) = fields.optional("logit_bias") else { return Ok(Vec::new()) };
    let wanted =
        format!("an object of at most {BIASES_MAX} token ids with numbers from -100 to 100");
    let wrong = |given| {
        let (param, wanted) = ("logit_bias".to_owned(), wanted.clone());
        Err(ParseError::Wrong { param, wanted, given })
    };
    let Some(object) = value.as_object().filter(|object| object.len() <= BIASES_MAX) else {
        return wrong(given(value));
    };
    // Two spellings of one id are one id; the later counts.
    let mut biases = BTreeMap::new();
    for (key, value) in object {
        let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
        let Some(token) = key.parse::<u32>().ok().filter(|_| is_number) else {
            return wrong(given(&Value::String(key.clone())));
        };
        #[allow(clippy::cast_possible_truncation, reason = "-100 to 100 is in the range of f32")]
        match value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
            Some(bias) => biases.insert(token, bias as f32),
            None => return wrong(given(value)),
        };
    }
    Ok(biases.into_iter().collect())
}

/// Stop strings: one, or a list of some.
pub fn stop(fields: &Fields<'_>) -> Result<Vec<String>, ParseError> {
    let Some(value) = fields.optional("stop") else { return Ok(Vec::new()) };
    let one = |value: &Value| {
        let stop = value.as_str().filter(|stop| !stop.is_empty())?;
        (stop.chars().count() <= STOP_CHARS_MAX).then(|| stop.to_owned())
    };
    let stops = match value {
        Value::Array(items) if items.len() <= STOPS_MAX => items.iter().map(one).collect(),
        Value::String(_) => one(value).map(|stop| vec![stop]),
        _ => None,
    };
    let wanted = format!(
        "a string of 1 to {STOP_CHARS_MAX} characters, or a list of at most {STOPS_MAX} of them"
    );
    stops.ok_or_else(|| fields.wrong("stop", &wanted, value))
}

/// Of how many of the likeliest tokens log probabilities are wanted beside that of the drawn one;
/// none: of no token at all.
pub fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ParseError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.whole_between("top_logprobs", 0, TOP_LOGPROBS_MAX)?.unwrap_or(0);
    match fields.optional("top_logprobs") {
        Some(value) if top > 0 && !wanted => {
            Err(fields.wrong("top_logprobs", "left out or 0 unless logprobs is true", value))
        }
        _ => Ok(wanted.then_some(top)),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "0 to 2 is in the range of f32")]
fn temperature(fields: &Fields<'_>) -> Result<f32, ParseError> {
    let value =
        fields.number("temperature", "a number from 0 to 2", |t| (0.0..=2.0).contains(&t))?;
    let temperature = value.unwrap_or(DEFAULT_TEMPERATURE) as f32;
    // So cold that the most probable token is certain, and logits divided by it may overflow.
    Ok(if temperature < COLDEST { 0.0 } else { temperature })
}

#[allow(clippy::cast_possible_truncation, reason = "0 to 1 is in the range of f32")]
fn top_p(fields: &Fields<'_>) -> Result<f32, ParseError> {
    let wanted = "a number above 0, at most 1";
    let value = fields.number("top_p", wanted, |p| p > 0.0 && p <= 1.0)?;
    // A value that rounds to 0 keeps its meaning: the most probable token alone.
    Ok((value.unwrap_or(1.0) as f32).max(f32::MIN_POSITIVE))
}

#[allow(clippy::cast_possible_truncation, reason = "the bounds are in the range of f32")]
fn number(
    fields: &Fields<'_>,
    name: &str,
    wanted: &str,
    least: f64,
    most: f64,
) -> Result<Option<f32>, ParseError> {
    let value = fields.number(name, wanted, |value| (least..=most).contains(&value))?;
    Ok(value.map(|value| value as f32))
}

const DEFAULT_TEMPERATURE: f64 = 1.0;
/// The smallest temperature that is not greedy.
const COLDEST: f32 = 1e-4;
const BIASES_MAX: usize = 1024;
const STOPS_MAX: usize = 4;
/// Held-back text is searched at every token, so its length is bounded.
const STOP_CHARS_MAX: usize = 500;
const TOP_LOGPROBS_MAX: u32 = 20;
