//! The bytes of a request, under a bound each for their number, their time and the memory of all
//! that arrive at once. It does not know what they mean.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use futures::StreamExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::error::ApiError;

/// A body in memory. While it lives it counts against [`LARGE_BODIES_MAX`], if it is large.
#[derive(Debug)]
pub struct Received<'a> {
    pub bytes: Vec<u8>,
    /// Held for its drop alone.
    large: Option<SemaphorePermit<'a>>,
}

/// Reads the whole body. `large` has one permit for each large body that may be in memory.
pub async fn receive<'a>(
    headers: &HeaderMap,
    body: Body,
    large: &'a Semaphore,
) -> Result<Received<'a>, ApiError> {
    json_content_type(headers)?;
    timeout(BODY_TIMEOUT, collect(body, large)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
    })
}

/// A page in a browser can send any other type, or none, to another site without asking; for this
/// one the browser asks first, and gets no for an answer.
fn json_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = given.as_deref().and_then(|given| given.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message = match given {
        Some(given) => {
            let shown: String = given.chars().take(80).collect();
            format!("the `content-type` header must be application/json, got {shown:?}")
        }
        None => "the `content-type` header is missing; send application/json".to_owned(),
    };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message))
}

async fn collect(body: Body, large: &Semaphore) -> Result<Received<'_>, ApiError> {
    let mut chunks = body.into_data_stream();
    let mut received = Received { bytes: Vec::new(), large: None };
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            let message = format!("the body could not be read: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, "body_broken", message)
        })?;
        let length = received.bytes.len() + chunk.len();
        if length > BODY_BYTES_MAX {
            // Whoever is still sending would not read an answer before the connection closed.
            let mut discarded = length;
            drop(received);
            while let Some(Ok(chunk)) = chunks.next().await {
                discarded += chunk.len();
                if discarded > DISCARDED_BYTES_MAX {
                    break;
                }
            }
            let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        if length > SMALL_BODY_BYTES_MAX && received.large.is_none() {
            received.large = Some(large_permit(large).await?);
        }
        received.bytes.extend_from_slice(&chunk);
    }
    Ok(received)
}

async fn large_permit(large: &Semaphore) -> Result<SemaphorePermit<'_>, ApiError> {
    let busy = || {
        let message = format!("{LARGE_BODIES_MAX} large bodies are being read already");
        ApiError::unavailable("busy", message, 1)
    };
    timeout(LARGE_WAIT, large.acquire()).await.map_err(|_| busy())?.map_err(|_| busy())
}

/// 16 MiB: some four million tokens of text.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Beyond this a body needs a permit. Small ones are bounded by the number of connections:
/// 1,024 × 256 KiB = 256 MiB.
const SMALL_BODY_BYTES_MAX: usize = 256 << 10;
/// Large bodies in memory at once: 4 × 16 MiB = 64 MiB, and while one is parsed a few times that.
pub const LARGE_BODIES_MAX: usize = 4;
/// What is read and thrown away of a body that is too large.
const DISCARDED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const LARGE_WAIT: Duration = Duration::from_secs(5);
