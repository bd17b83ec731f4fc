//! One rank process, as its node sees it: started, spoken to over a socket pair, watched, and
//! ended. It knows no plan and no peer.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as BlockingStream;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::Rank;
use daisy_proto::control::RankKey;
use daisy_proto::local::{FromRank, RankStart, ToRank};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::memory_watch::MemoryWatch;
use crate::engine;
use crate::guard::Step;
use crate::ipc::{Reader, Writer};
use crate::machine::Machine;

/// A rank process of this node. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) pid: u32,
    pub(crate) key: RankKey,
    pub(crate) port: u16,
    to: mpsc::Sender<ToRank>,
    stop: Option<oneshot::Sender<()>>,
    gone: watch::Receiver<bool>,
}

/// What a rank process does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RankEvent {
    Message(FromRank),
    /// Its machine is short of memory, for this reason, or no longer so.
    Memory(Option<String>),
    /// The process is gone. The last event.
    Exited {
        reason: String,
        blame: Option<Rank>,
    },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RankProcessError {
    #[error("cannot start a rank process: {0}")]
    Spawn(#[from] std::io::Error),
    #[error("the rank process {0}")]
    Early(String),
    #[error("the rank process did not listen within {} s", LISTEN_MAX.as_secs())]
    Late,
}

impl RankProcess {
    /// Starts the process and waits until it listens. Its further events go to `events`.
    pub(crate) async fn start(
        start: RankStart,
        machine: &Arc<Machine>,
        events: mpsc::Sender<RankEvent>,
    ) -> Result<Self, RankProcessError> {
        let rank = start.rank;
        let memory = MemoryWatch::start(Arc::clone(machine)).await;
        let (ours, theirs) = BlockingStream::pair()?;
        ours.set_nonblocking(true)?;
        let unset = engine::ENVIRONMENT.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let mut child = Command::new(std::env::current_exe()?)
            .arg("rank")
            .envs(unset.copied())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl+C in the terminal is for the node: it tells its ranks what to do.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let stderr = child.stderr.take();
        let (read, write) = UnixStream::from_std(ours)?.into_split();
        let (to, inbox) = mpsc::channel(TO_RANK_MAX);
        let (stop, stopped) = oneshot::channel();
        let (gone_flag, gone) = watch::channel(false);
        let (early_events, mut early) = mpsc::channel(1);
        tokio::spawn(write_all(Writer::new(write), inbox));
        let supervisor = Supervisor {
            rank,
            child,
            stderr,
            early: Some(early_events),
            events,
            failed: None,
            to: to.clone(),
        };
        tokio::spawn(async move {
            supervisor.run(Reader::new(read), memory, stopped).await;
            gone_flag.send_replace(true);
        });
        let mut process = Self { pid, key: RankKey([0; 32]), port: 0, to, stop: Some(stop), gone };
        process.send(ToRank::Start(start)).await;
        match timeout(LISTEN_MAX, early.recv()).await {
            Ok(Some(RankEvent::Message(FromRank::Listening { key, port }))) => {
                process.key = key;
                process.port = port;
                Ok(process)
            }
            Ok(Some(RankEvent::Exited { reason, .. })) => Err(RankProcessError::Early(reason)),
            Ok(Some(RankEvent::Message(_) | RankEvent::Memory(_)) | None) => {
                Err(RankProcessError::Early("spoke out of turn".to_owned()))
            }
            Err(_) => Err(RankProcessError::Late),
        }
    }

    /// Tells the rank something. A rank that is gone has said so by an event.
    pub(crate) async fn send(&self, message: ToRank) {
        let _ = self.to.send(message).await;
    }

    /// A door for those who only send.
    pub(crate) fn sender(&self) -> mpsc::Sender<ToRank> {
        self.to.clone()
    }

    /// Asks the process to unload, kills it after a grace time, and waits until it is gone.
    pub(crate) async fn stop(mut self) {
        let _ = self.to.try_send(ToRank::Unload);
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = self.gone.wait_for(|gone| *gone).await;
    }
}

/// Owns the child process until it is gone.
#[derive(Debug)]
struct Supervisor {
    rank: Rank,
    child: Child,
    stderr: Option<ChildStderr>,
    /// Until the rank listens, its messages are its starter's.
    early: Option<mpsc::Sender<RankEvent>>,
    events: mpsc::Sender<RankEvent>,
    failed: Option<(String, Option<Rank>)>,
    to: mpsc::Sender<ToRank>,
}

impl Supervisor {
    async fn run(
        mut self,
        mut reader: Reader,
        mut memory: MemoryWatch,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let log = tokio::spawn(forward_log(self.rank, self.child.id(), self.stderr.take()));
        let status = loop {
            tokio::select! {
                // What the rank said before it died is told before its death.
                biased;
                message = reader.read::<FromRank>() => match message {
                    Ok(Some(FromRank::Failed { message, blame })) => self.failed = Some((message, blame)),
                    Ok(Some(message)) => {
                        if matches!(message, FromRank::Ready { .. }) {
                            memory.loaded();
                        }
                        self.tell(RankEvent::Message(message)).await;
                    }
                    // End of file: the process has ended, or will now that nobody can hear it.
                    Ok(None) => break self.end().await,
                    Err(error) => {
                        self.failed = Some((error.to_string(), None));
                        break self.end().await;
                    }
                },
                _ = &mut stopped => break self.end().await,
                step = memory.next() => match step {
                    // A rank that is busy hears it later, and one that has much to do needs its caches.
                    Step::Shrink => drop(self.to.try_send(ToRank::Shrink)),
                    Step::Refuse(why) => self.tell(RankEvent::Memory(Some(why))).await,
                    Step::Resume => self.tell(RankEvent::Memory(None)).await,
                    Step::GiveUp(why) => {
                        self.failed = Some((why, None));
                        // Not even the time to say goodbye: the machine needs its memory now.
                        let _ = self.child.start_kill();
                        break self.end().await;
                    }
                },
            }
        };
        // A process that does not die keeps its log open, and so does a child that it left behind.
        let last_line = timeout(LOG_MAX, log).await.ok().and_then(Result::ok).flatten();
        let (reason, blame) = match self.failed.take() {
            Some((reason, blame)) => (format!("failed: {reason}"), blame),
            None => (describe(status, last_line), None),
        };
        // It travels in a control message, and a damaged file may have put anything into it.
        let reason = reason.chars().take(REASON_CHARS_MAX).collect::<String>();
        tracing::info!(rank = self.rank.0, reason, "rank process ended");
        self.tell(RankEvent::Exited { reason, blame }).await;
    }

    async fn tell(&mut self, event: RankEvent) {
        let receiver = match self.early.take() {
            Some(early) => early,
            None => self.events.clone(),
        };
        // Nobody listens any more: the pipeline is being taken down.
        let _ = receiver.send(event).await;
    }

    /// Gives the process two seconds to end by itself.
    async fn end(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = timeout(UNLOAD_MAX, self.child.wait()).await {
            return status.ok();
        }
        tracing::warn!(rank = self.rank.0, "the rank process does not end by itself: killing it");
        let _ = self.child.start_kill();
        if let Ok(status) = timeout(KILL_MAX, self.child.wait()).await {
            return status.ok();
        }
        tracing::error!(
            rank = self.rank.0,
            pid = self.child.id(),
            "the rank process does not die; its memory stays taken until it does"
        );
        None
    }
}

async fn write_all(mut writer: Writer, mut inbox: mpsc::Receiver<ToRank>) {
    while let Some(message) = inbox.recv().await {
        if writer.write(&message).await.is_err() {
            // The reader's side reports the end.
            return;
        }
    }
}

/// Passes the rank's log on; gives its last line.
async fn forward_log(rank: Rank, pid: Option<u32>, stderr: Option<ChildStderr>) -> Option<String> {
    let mut lines = BufReader::new(stderr?).lines();
    let mut last = None;
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::info!(target: "daisy::rank", rank = rank.0, pid, "{line}");
        last = Some(line);
    }
    last
}

fn describe(status: Option<ExitStatus>, last_line: Option<String>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    let how = match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(0), _) | (None, None) => "ended".to_owned(),
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
        },
        None => "does not answer".to_owned(),
    };
    match last_line {
        Some(line) if status.is_none_or(|status| !status.success()) => {
            format!("{how}; its last log line: {line}")
        }
        _ => how,
    }
}

const REASON_CHARS_MAX: usize = 2000;
/// Admissions and cancellations of a full queue, with room.
const TO_RANK_MAX: usize = 256;
/// The binary loads MLX's library before it listens.
const LISTEN_MAX: Duration = Duration::from_secs(20);
const UNLOAD_MAX: Duration = Duration::from_secs(2);
const KILL_MAX: Duration = Duration::from_secs(5);
/// The rest of a log that nobody writes any more.
const LOG_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Limits;

    #[tokio::test]
    async fn a_log_that_stays_open_does_not_hide_the_end() {
        // Ends at once and leaves a child that holds its standard error.
        let mut child = Command::new("sh")
            .args(["-c", "echo gone >&2; sleep 20 & exit 3"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let stderr = child.stderr.take();
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(theirs);
        let (read, _write) = ours.into_split();
        let (events, mut told) = mpsc::channel(1);
        let (_stop, stopped) = oneshot::channel();
        let (to, _inbox) = mpsc::channel(1);
        let supervisor =
            Supervisor { rank: Rank(0), child, stderr, early: None, events, failed: None, to };
        let machine = Machine::new(std::net::Ipv4Addr::LOCALHOST.into(), Limits::default());
        let memory = MemoryWatch::start(Arc::new(machine)).await;
        tokio::spawn(supervisor.run(Reader::new(read), memory, stopped));
        let event = timeout(Duration::from_secs(10), told.recv()).await.expect("in time");
        let Some(RankEvent::Exited { reason, .. }) = event else { panic!("{event:?}") };
        assert!(reason.contains("exit code 3"), "{reason}");
    }
}
