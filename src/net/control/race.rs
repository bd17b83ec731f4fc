//! One node by several addresses: all are dialled, each a moment after the one before it, and the first
//! that answers wins. An address proves nothing; each dial checks the key by itself.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::DialError;

/// The first good outcome, or the failure that says most.
pub(super) async fn race<T, F>(
    addrs: &[SocketAddr],
    dial: impl Fn(SocketAddr) -> F,
) -> Option<Result<T, DialError>>
where
    F: Future<Output = Result<T, DialError>>,
{
    let mut dials: FuturesUnordered<_> = (0..)
        .zip(addrs.iter().take(ADDRS_MAX))
        .map(|(position, addr)| {
            let dial = dial(*addr);
            async move {
                tokio::time::sleep(HEAD_START * position).await;
                dial.await
            }
        })
        .collect();
    let mut worst: Option<DialError> = None;
    while let Some(outcome) = dials.next().await {
        match outcome {
            Ok(connected) => return Some(Ok(connected)),
            Err(error) => {
                if worst.as_ref().is_none_or(|known| weight(&error) > weight(known)) {
                    worst = Some(error);
                }
            }
        }
    }
    worst.map(Err)
}

/// What the node itself said weighs more than silence, and silence more than a fault of this end.
fn weight(error: &DialError) -> u8 {
    match error {
        DialError::Version { .. } | DialError::NotTrustedByPeer { .. } => 4,
        DialError::Untrusted { .. } | DialError::Closed { .. } | DialError::Busy { .. } => 3,
        DialError::ItIsMe { .. } | DialError::OtherNode { .. } | DialError::NotANode { .. } => 2,
        DialError::Unreachable { .. } => 1,
        DialError::Local { .. } => 0,
    }
}

const ADDRS_MAX: usize = 16;
/// An earlier address wins when both answer at once.
const HEAD_START: Duration = Duration::from_millis(20);
