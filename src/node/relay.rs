//! Queues that flow into another: a task with many sources reads one.

use tokio::sync::mpsc;

/// A queue of `capacity` whose messages join `into` as `wrap` makes them.
pub(crate) fn relay<T: Send + 'static, U: Send + 'static>(
    capacity: usize,
    into: mpsc::Sender<U>,
    wrap: impl Fn(T) -> U + Send + 'static,
) -> mpsc::Sender<T> {
    let (sender, receiver) = mpsc::channel(capacity);
    join(receiver, into, wrap);
    sender
}

/// Lets what comes out of `from` join `into`, until either end is gone.
pub(crate) fn join<T: Send + 'static, U: Send + 'static>(
    mut from: mpsc::Receiver<T>,
    into: mpsc::Sender<U>,
    wrap: impl Fn(T) -> U + Send + 'static,
) {
    tokio::spawn(async move {
        while let Some(message) = from.recv().await {
            if into.send(wrap(message)).await.is_err() {
                return;
            }
        }
    });
}
