//! The HTTP endpoint of a serving node: OpenAI's chat completions, the list of models, and two
//! probes. JSON exists here and nowhere else.
//!
//! It knows neither ranks nor peers nor tokens: it sees the node through one [`Handle`], and what a
//! client sends becomes a valid [`crate::node::handle::ChatRequest`] once, in `parse`. It keeps
//! no queue of its own beyond the bounds in `server` and `body`.
//!
//! Start at `router`, which lists what is served, then `chat`. `docs/api.md` is the same from
//! the client's side.

mod body;
mod chat;
mod deadline;
mod error;
mod guard;
mod listen;
mod parse;
mod server;
mod status;
mod stream;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tokio::sync::{Semaphore, watch};

use crate::node::handle::Handle;

pub mod client;

pub use listen::{BindError, bind};
pub use server::run;

/// What every handler shares.
#[derive(Debug, Clone)]
struct App {
    handle: Handle,
    /// True once the caller of [`run`] wants to stop: what is new gets a 503.
    stopping: watch::Receiver<bool>,
    /// One permit per large body in memory, see [`body`].
    large_bodies: Arc<Semaphore>,
    ids: Arc<guard::RequestIds>,
}

impl App {
    fn new(handle: Handle, stopping: watch::Receiver<bool>) -> Self {
        Self {
            handle,
            stopping,
            large_bodies: Arc::new(Semaphore::new(body::LARGE_BODIES_MAX)),
            ids: Arc::new(guard::RequestIds::new()),
        }
    }
}

/// Everything that is served. Whatever is not listed is a 404 in OpenAI's error shape.
fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{*id}", get(status::model))
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .fallback(error::unknown_path)
        .method_not_allowed_fallback(error::wrong_method)
        // `body` counts for itself, so that what is too large is refused in our own shape.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(guard::only_loopback_names))
        .layer(from_fn_with_state(app.clone(), guard::name_request))
        .with_state(app)
}

#[cfg(test)]
mod tests;
