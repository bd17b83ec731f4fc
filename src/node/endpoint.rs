//! The HTTP side of a served model, as its driver holds it: open from before the load until after
//! the last rank is gone, so that clients always hear how things stand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::handle::{Handle, Readiness, SUBMISSIONS_MAX, ServedModel, Serving, Submission};
use crate::api;

#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Up to `/v1`.
    pub(crate) url: String,
    state: watch::Sender<Serving>,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Endpoint {
    /// Starts to answer; requests come out of the receiver once the state is ready.
    pub(crate) fn open(
        listener: TcpListener,
        addr: SocketAddr,
        name: &str,
        context: u32,
    ) -> (Self, mpsc::Receiver<Submission>) {
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let model = ServedModel { id: name.to_owned(), context, created: since_epoch.as_secs() };
        let readiness = Readiness::Loading { done: 0, total: 0, ranks: Vec::new() };
        let (state, watched) = watch::channel(Serving { model: Arc::new(model), readiness });
        let (submit, submissions) = mpsc::channel(SUBMISSIONS_MAX);
        let (shutdown, stopped) = oneshot::channel();
        let task = tokio::spawn(api::run(listener, Handle { submit, state: watched }, async {
            let _ = stopped.await;
        }));
        (Self { url: format!("http://{addr}/v1"), state, shutdown, task }, submissions)
    }

    pub(crate) fn set(&self, readiness: Readiness) {
        self.state.send_modify(|serving| serving.readiness = readiness);
    }

    pub(crate) fn state(&self) -> watch::Receiver<Serving> {
        self.state.subscribe()
    }

    /// Takes no new connection and waits a little for the last answers to be read.
    pub(crate) async fn close(mut self) {
        let _ = self.shutdown.send(());
        if timeout(CLOSE_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

const CLOSE_MAX: Duration = Duration::from_secs(2);
