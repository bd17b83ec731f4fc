//! A peer as the driver sees it: one control connection that lasts as long as the pipeline. Calls
//! are answered by number; events come in between. The connection is a lease: when it ends, the
//! peer ends the ranks that were staged over it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::control::{Event, Message, Request, Response};
use daisy_proto::{CloseReason, NodeId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::net::{ControlConnection, ControlReceiver, ControlSender};

/// A door to a connected peer.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Its key, which it has proved.
    pub(crate) id: NodeId,
    pub(crate) remote: SocketAddr,
    calls: mpsc::Sender<Call>,
}

/// What a peer tells unasked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PeerEvent {
    Event(Event),
    /// The connection is gone. The last event.
    Lost(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the connection to {0} is gone")]
    Gone(SocketAddr),
    #[error("{remote} did not answer within {} s", after.as_secs())]
    Late { remote: SocketAddr, after: Duration },
}

type Call = (Request, oneshot::Sender<Response>);

impl Peer {
    /// Takes a fresh connection over. Dropping every clone of the peer closes it.
    pub(crate) fn start(connection: ControlConnection, events: mpsc::Sender<PeerEvent>) -> Self {
        let (id, remote) = (connection.peer, connection.remote);
        let (sender, receiver) = connection.split();
        let (calls, inbox) = mpsc::channel(CALLS_MAX);
        tokio::spawn(async move {
            let lost = pump(sender, receiver, inbox, &events).await;
            let _ = events.send(PeerEvent::Lost(lost)).await;
        });
        Self { id, remote, calls }
    }

    /// Asks the peer something and waits for its answer.
    pub(crate) async fn call(
        &self,
        request: Request,
        after: Duration,
    ) -> Result<Response, CallError> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.calls.send((request, reply)).await.ok()?;
            answer.await.ok()
        };
        match timeout(after, asked).await {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(CallError::Gone(self.remote)),
            Err(_) => Err(CallError::Late { remote: self.remote, after }),
        }
    }
}

/// Carries calls out and answers and events in until one side ends; says how it ended.
async fn pump(
    sender: ControlSender,
    mut receiver: ControlReceiver,
    mut calls: mpsc::Receiver<Call>,
    events: &mpsc::Sender<PeerEvent>,
) -> String {
    // Reading is a task of its own: a cancelled read could lose half a message.
    let (incoming, mut inbox) = mpsc::channel(CALLS_MAX);
    let reading = tokio::spawn(async move {
        loop {
            let message = receiver.recv().await;
            let ended = message.is_err();
            if incoming.send(message).await.is_err() || ended {
                return;
            }
        }
    });
    let mut waiting = HashMap::new();
    let mut next_call = 0;
    let lost = loop {
        tokio::select! {
            call = calls.recv() => {
                let Some((request, reply)) = call else {
                    sender.close(CloseReason::Done);
                    break "closed by this node".to_owned();
                };
                waiting.insert(next_call, reply);
                if let Err(error) = sender.send(&Message::Request { call: next_call, request }).await {
                    break error.to_string();
                }
                next_call += 1;
            }
            message = inbox.recv() => match message {
                Some(Ok(Message::Response { call, response })) => {
                    if let Some(reply) = waiting.remove(&call) {
                        // The caller may have stopped waiting.
                        let _ = reply.send(response);
                    }
                }
                Some(Ok(Message::Event(event))) => {
                    if events.send(PeerEvent::Event(event)).await.is_err() {
                        break "no longer wanted".to_owned();
                    }
                }
                // The node that was dialled has nothing to ask of its driver.
                Some(Ok(Message::Request { .. })) => {}
                Some(Err(error)) => break error.to_string(),
                None => break "closed".to_owned(),
            },
        }
    };
    reading.abort();
    lost
}

/// The driver has at most one call per rank under way.
const CALLS_MAX: usize = 16;
