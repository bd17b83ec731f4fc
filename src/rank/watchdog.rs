//! Notices that the rank's thread does not come back from its work.
//!
//! A device can hang without an error, and then nothing else in this process would say so: the edges
//! are alive, because a thread of their own runs them while the engine computes. Only this rank knows
//! that it is the one, so it says so itself. It does not know what the work is. Start at
//! [`Watchdog::start`].

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Watches one thread; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// When the work began; none while the thread waits for some.
    since: Arc<Mutex<Option<Instant>>>,
    _alive: SyncSender<()>,
}

impl Watchdog {
    /// Calls `bark` once, from another thread, when a piece of work has taken longer than `limit`.
    pub(super) fn start(limit: Duration, bark: impl FnOnce() + Send + 'static) -> Self {
        let since = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&since);
        let (alive, ended) = sync_channel::<()>(0);
        thread::spawn(move || {
            while ended.recv_timeout(limit / LOOKS) == Err(RecvTimeoutError::Timeout) {
                let since: Option<Instant> = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                if since.is_some_and(|since| since.elapsed() > limit) {
                    return bark();
                }
            }
        });
        Self { since, _alive: alive }
    }

    pub(super) fn begin(&self) {
        self.set(Some(Instant::now()));
    }

    pub(super) fn end(&self) {
        self.set(None);
    }

    fn set(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// Per limit.
const LOOKS: u32 = 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    #[test]
    fn it_barks_at_work_without_an_end_and_at_nothing_else() {
        let (barks, heard) = channel();
        let watchdog = Watchdog::start(LIMIT, move || barks.send(Instant::now()).expect("heard"));
        // Much work, each piece short, and a long wait for more.
        let began = Instant::now();
        while began.elapsed() < 2 * LIMIT {
            watchdog.begin();
            watchdog.end();
        }
        assert!(heard.recv_timeout(2 * LIMIT).is_err(), "nothing has hung");
        let began = Instant::now();
        watchdog.begin();
        let barked = heard.recv_timeout(50 * LIMIT).expect("it hangs");
        assert!(barked - began > LIMIT);
    }

    #[test]
    fn it_ends_with_its_owner() {
        let (barks, heard) = channel::<()>();
        let watchdog = Watchdog::start(LIMIT, move || barks.send(()).expect("heard"));
        watchdog.begin();
        drop(watchdog);
        // The sender goes with the thread, which has not used it.
        assert!(heard.recv().is_err());
    }
}
