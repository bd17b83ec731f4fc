//! Every error a client can see, in OpenAI's shape: `{"error":{message,type,param,code}}`.
//!
//! Texts here go to clients: they name the field, the bound and the value, never a file or a line.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::node::handle::{Readiness, SubmitError};

use super::parse::ParseError;

/// An answer that is not the one the client wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message, param: None, code: Some(code), retry_after_s: None }
    }

    pub fn unavailable(code: &'static str, message: impl Into<String>, retry_after_s: u32) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// The pipeline failed under a request that had been admitted.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::unavailable("generation_failed", message, RETRY_FAILED_S)
    }

    /// [`super::run`] was told to stop.
    pub fn stopping() -> Self {
        Self::unavailable("stopping", "this endpoint is stopping", RETRY_DRAINING_S)
    }

    /// The same as JSON, for a body or for an event of a stream that has begun.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorFields {
                message: &self.message,
                kind: match self.status {
                    StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
                    status if status.is_server_error() => "server_error",
                    _ => "invalid_request_error",
                },
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    pub error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
pub struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl From<ParseError> for ApiError {
    fn from(error: ParseError) -> Self {
        let (status, code) = match error {
            ParseError::Json(_) | ParseError::NotAnObject { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_json")
            }
            ParseError::UnknownModel { .. } => (StatusCode::NOT_FOUND, "model_not_found"),
            ParseError::Missing { .. } => (StatusCode::BAD_REQUEST, "missing_required_parameter"),
            ParseError::Wrong { .. } => (StatusCode::BAD_REQUEST, "invalid_value"),
            ParseError::Unsupported { .. } => (StatusCode::BAD_REQUEST, "unsupported_parameter"),
        };
        let mut answer = Self::new(status, code, error.to_string());
        answer.param = error.param().map(str::to_owned);
        answer
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid { param, .. } => {
                let mut answer = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
                answer.param = Some(param.to_owned());
                answer
            }
            SubmitError::QueueFull { retry_after_s, .. } => {
                let mut answer = Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
                answer.retry_after_s = Some(retry_after_s);
                answer
            }
            SubmitError::NotReady(_) => Self::unavailable("not_ready", message, RETRY_LOADING_S),
        }
    }
}

/// Why nothing can be answered now; `None` when it can.
pub fn not_ready(readiness: &Readiness) -> Option<ApiError> {
    match readiness {
        Readiness::Ready => None,
        Readiness::Loading { done, total, .. } => Some(ApiError::unavailable(
            "loading",
            format!("the model is loading: {done} of {total} layers are in memory"),
            RETRY_LOADING_S,
        )),
        Readiness::Draining => Some(ApiError::unavailable(
            "draining",
            "this endpoint is stopping: running requests end, new ones are refused",
            RETRY_DRAINING_S,
        )),
        Readiness::Short { reason } => {
            Some(ApiError::unavailable("short_of_memory", reason.clone(), RETRY_SHORT_S))
        }
        Readiness::Failed { reason } => {
            Some(ApiError::unavailable("pipeline_failed", reason.clone(), RETRY_FAILED_S))
        }
    }
}

pub async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} {} is not served here; see GET /v1/models", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message)
}

pub async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not accept {method}; the `allow` header says what", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

const RETRY_LOADING_S: u32 = 5;
const RETRY_DRAINING_S: u32 = 10;
const RETRY_SHORT_S: u32 = 10;
const RETRY_FAILED_S: u32 = 30;
