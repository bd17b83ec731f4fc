//! Connections: accepted up to a bound, each with deadlines for its head and its writes, and closed
//! in good order. What is said on them is [`super::router`]'s.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::node::handle::Handle;

use super::App;
use super::deadline::WriteDeadline;

/// Serves until `shutdown` resolves, and then until what was running has ended, but no longer than
/// five seconds; meanwhile new requests get a 503. Dropping the future closes every connection at
/// once.
pub async fn run(listener: TcpListener, handle: Handle, shutdown: impl Future<Output = ()>) {
    let (stop, stopping) = watch::channel(false);
    let router = super::router(App::new(handle, stopping.clone()));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut running = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, slot) = accept(&listener, &slots) => {
                running.spawn(converse(stream, slot, router.clone(), stopping.clone()));
            }
            Some(_) = running.join_next() => {}
        }
    }
    stop.send_replace(true);
    let mut late = JoinSet::new();
    let drained = async {
        loop {
            tokio::select! {
                ended = running.join_next() => if ended.is_none() { break },
                (stream, slot) = accept(&listener, &slots) => {
                    late.spawn(refuse(stream, slot, router.clone()));
                }
                Some(_) = late.join_next() => {}
            }
        }
    };
    if timeout(STOP_MAX, drained).await.is_err() {
        tracing::warn!(connections = running.len(), "requests were still running; closing them");
    }
}

/// The next connection with its slot; waits while all slots are taken.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let slot = Arc::clone(slots).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, slot),
            // A client that left in the meantime, or no file descriptor left: neither ends service.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    _slot: OwnedSemaphorePermit,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let mut connection =
        pin!(http().serve_connection(io(stream), TowerToHyperService::new(router)));
    tokio::select! {
        ended = connection.as_mut() => return log_end(ended),
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    log_end(connection.await);
}

/// A connection that came after the end had begun: one answer, which is a 503, and goodbye.
async fn refuse(stream: TcpStream, _slot: OwnedSemaphorePermit, router: Router) {
    let service = TowerToHyperService::new(router);
    log_end(http().keep_alive(false).serve_connection(io(stream), service).await);
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    http
}

fn io(stream: TcpStream) -> TokioIo<WriteDeadline<TcpStream>> {
    // Each event of a stream is a small write of its own; without this it may wait for the last
    // one's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    TokioIo::new(WriteDeadline::new(stream, WRITE_TIMEOUT))
}

fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Connections open at once. More wait in the system's own queue.
const CONNECTIONS_MAX: usize = 1024;
/// Request line and headers, give or take the last read.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// From the opening of a connection, or the end of its last answer, to the end of the next head:
/// it bounds half-open clients and idle ones alike.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a client may take nothing of what is sent to it.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// How long running answers may last after the wish to stop. Who wants to wait longer drains first.
pub const STOP_MAX: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
