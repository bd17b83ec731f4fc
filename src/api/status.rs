//! What is served and how it is: the list of models, and two probes.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};

use crate::node::handle::{LoadingRank, Readiness};

use super::App;
use super::error::{ApiError, not_ready};
use super::parse::{ParseError, names_model};
use super::wire::{Model, ModelList, Progress, RankProgress, Ready};

/// `GET /v1/models`. The model is listed while it loads, too.
pub async fn models(State(app): State<App>) -> Response {
    let served = app.handle.serving().model;
    Json(ModelList { object: "list", data: [Model::new(&served)] }).into_response()
}

/// `GET /v1/models/{id}`; an id may hold a slash.
pub async fn model(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_path", error.body_text().to_lowercase())
    })?;
    let served = app.handle.serving().model;
    if !names_model(&id, &served) {
        return Err(ParseError::UnknownModel { asked: id, served: served.id.clone() }.into());
    }
    Ok(Json(Model::new(&served)).into_response())
}

/// `GET /health`: this process lives. Nothing more, so that a supervisor restarts it for no other
/// reason.
pub async fn health() -> Response {
    Json(Ready { status: "alive", model: None, progress: None, error: None }).into_response()
}

/// `GET /ready`: a request sent now would be taken.
pub async fn ready(State(app): State<App>) -> Response {
    let serving = app.handle.serving();
    let stopping = *app.stopping.borrow();
    let (status, progress) = match serving.readiness {
        _ if stopping => ("draining", None),
        Readiness::Ready => ("ready", None),
        Readiness::Loading { done, total, ref ranks } => {
            ("loading", Some(Progress { done, total, ranks: rank_progress(ranks) }))
        }
        Readiness::Draining => ("draining", None),
        Readiness::Short { .. } => ("short_of_memory", None),
        Readiness::Failed { .. } => ("failed", None),
    };
    let error = if stopping { Some(ApiError::stopping()) } else { not_ready(&serving.readiness) };
    let body = Ready {
        status,
        model: Some(&serving.model.id),
        progress,
        error: error.as_ref().map(|error| error.body().error),
    };
    let code = error.as_ref().map_or(StatusCode::OK, |error| error.status);
    let mut response = (code, Json(body)).into_response();
    if let Some(seconds) = error.and_then(|error| error.retry_after_s) {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn rank_progress(ranks: &[LoadingRank]) -> Vec<RankProgress> {
    let ranks = ranks.iter().cloned().enumerate();
    let ranks = ranks.map(|(rank, LoadingRank { node, done, total, resident_bytes })| {
        RankProgress { rank, node, done, total, resident_bytes }
    });
    ranks.collect()
}
