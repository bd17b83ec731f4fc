//! Who moves the bytes of a rank's edges: the rank's own thread while it waits, a caretaker while it computes.
//!
//! The edges of a rank are tasks of one runtime. To hand a step from thread to thread costs several
//! microseconds, more than to read it from the wire, so a rank that has nothing to do waits inside the
//! runtime: [`Inbox::recv`]. A step then goes from the socket to the rank, and from the rank to the socket,
//! without meeting another thread. When the rank computes, the caretaker thread takes the runtime over, so
//! that acknowledgements, heartbeats and what was sent meanwhile do not wait.
//!
//! The reactor does not know what an edge or an item is. Start at [`Reactor::start`].

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::task::Poll;
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

/// Runs the edges of one rank. Clones are the same reactor; it ends with the last of them.
#[derive(Debug, Clone)]
pub struct Reactor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Arc<Runtime>,
    turn: Arc<Turn>,
    caretaker: Thread,
}

impl Reactor {
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let runtime = Arc::new(runtime);
        let turn = Arc::new(Turn::default());
        let (of_caretaker, its_turn) = (Arc::clone(&runtime), Arc::clone(&turn));
        let thread = thread::Builder::new()
            .name("edges".to_owned())
            .spawn(move || caretake(&of_caretaker, &its_turn))?;
        Ok(Self(Arc::new(Inner { runtime, turn, caretaker: thread.thread().clone() })))
    }

    /// A queue whose reader drives the edges while it waits. One thread at a time may wait.
    pub fn inbox<T>(&self, items_max: usize) -> (Post<T>, Inbox<T>) {
        let (sender, queue) = sync_channel(items_max);
        let arrived = Arc::new(Notify::new());
        let post = Post { queue: sender, bell: Bell(Arc::clone(&arrived)) };
        (post, Inbox { queue, arrived, reactor: self.clone() })
    }

    pub(super) fn handle(&self) -> &Handle {
        self.0.runtime.handle()
    }

    /// Whether this is the thread that runs the edges now: it must not wait for them.
    pub(super) fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.handle().id())
    }

    /// Wakes the task that waits for `order` and lets it get as far as the socket before this returns, if
    /// no other thread runs the edges. It never waits for one that does.
    pub(super) fn order(&self, order: &Notify) {
        let Inner { runtime, turn, .. } = &*self.0;
        if turn.is_inside.load(Ordering::Relaxed) || Handle::try_current().is_ok() {
            order.notify_one();
            return;
        }
        let mut is_given = false;
        runtime.block_on(std::future::poll_fn(|context| {
            if std::mem::replace(&mut is_given, true) {
                return Poll::Ready(());
            }
            order.notify_one();
            context.waker().wake_by_ref();
            Poll::Pending
        }));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.turn.is_over.store(true, Ordering::SeqCst);
        self.turn.leave.notify_one();
        self.caretaker.unpark();
    }
}

/// Whose turn it is to run the edges. The flags and the count are read and written in one total order
/// (`SeqCst`): each side first says what it does, then looks at the other.
#[derive(Debug, Default)]
struct Turn {
    /// Begins and ends of waits: odd while the rank waits and runs the edges itself.
    count: AtomicU64,
    /// The caretaker runs the edges, or is about to.
    is_inside: AtomicBool,
    /// The caretaker will not look before it is woken.
    is_asleep: AtomicBool,
    is_over: AtomicBool,
    leave: Notify,
}

impl Turn {
    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn is_caretakers(&self) -> bool {
        self.count().is_multiple_of(2) && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn begin_wait(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.is_inside.load(Ordering::SeqCst) {
            self.leave.notify_one();
        }
    }

    fn end_wait(&self, caretaker: &Thread) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) {
            caretaker.unpark();
        }
    }
}

fn caretake(runtime: &Runtime, turn: &Turn) {
    while !turn.is_over() {
        turn.is_inside.store(true, Ordering::SeqCst);
        if turn.is_caretakers() {
            runtime.block_on(async {
                while turn.is_caretakers() {
                    turn.leave.notified().await;
                }
            });
        }
        turn.is_inside.store(false, Ordering::SeqCst);
        rest(turn);
    }
}

/// Returns when the caretaker has to take over. To wake it costs the rank a system call, and its coming and
/// going more, so it does not come for a computation of less than a nap; and where steps follow one
/// another so fast it looks by itself. Once they do not, it sleeps and must be woken.
fn rest(turn: &Turn) {
    let mut seen = turn.count();
    let mut quiet_naps = 0;
    while !turn.is_over() {
        thread::park_timeout(NAP);
        let count = turn.count();
        if count != seen {
            (seen, quiet_naps) = (count, 0);
            continue;
        }
        if turn.is_caretakers() {
            return;
        }
        quiet_naps += 1;
        if quiet_naps == NAPS_BEFORE_SLEEP {
            turn.is_asleep.store(true, Ordering::SeqCst);
            while turn.count() == seen && !turn.is_over() {
                thread::park();
            }
            turn.is_asleep.store(false, Ordering::SeqCst);
            if turn.is_caretakers() {
                return;
            }
        }
    }
}

/// Puts items into an [`Inbox`], from any thread.
pub struct Post<T> {
    queue: SyncSender<T>,
    /// After the queue: the reader must find it closed when the last one rings.
    bell: Bell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads this any more")]
pub struct InboxClosed;

impl<T> Post<T> {
    /// Waits only while the inbox is full.
    pub fn send(&self, item: T) -> Result<(), InboxClosed> {
        self.queue.send(item).map_err(|_| InboxClosed)?;
        self.bell.0.notify_one();
        Ok(())
    }
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: Bell(Arc::clone(&self.bell.0)) }
    }
}

impl<T> fmt::Debug for Post<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").finish_non_exhaustive()
    }
}

struct Bell(Arc<Notify>);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// What has come for a rank.
pub struct Inbox<T> {
    queue: Receiver<T>,
    arrived: Arc<Notify>,
    reactor: Reactor,
}

impl<T> Inbox<T> {
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.queue.try_recv()
    }

    /// The next item; none when every [`Post`] is gone.
    pub fn recv(&self) -> Option<T> {
        match self.queue.try_recv() {
            Ok(item) => return Some(item),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        let Inner { runtime, turn, caretaker } = &*self.reactor.0;
        turn.begin_wait();
        let item = runtime.block_on(async {
            loop {
                match self.queue.try_recv() {
                    Ok(item) => return Some(item),
                    Err(TryRecvError::Disconnected) => return None,
                    Err(TryRecvError::Empty) => self.arrived.notified().await,
                }
            }
        });
        turn.end_wait(caretaker);
        item
    }
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

/// A late acknowledgement of this much makes no peer send again.
const NAP: Duration = Duration::from_micros(500);
const NAPS_BEFORE_SLEEP: u32 = 8;
