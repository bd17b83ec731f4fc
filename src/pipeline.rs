//! Life of a pipeline at its driver: a pure state machine with a deadline on every state that
//! waits. It knows which ranks have come how far; it knows no process and no socket.

use std::time::Duration;

use daisy_proto::Rank;
use daisy_proto::control::LoadProgress;

/// Where a pipeline is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Rank processes start and listen.
    Staging,
    /// Edges connect and weights are read.
    Loading,
    /// A first prompt runs through the whole chain.
    Warming,
    Ready,
    /// No new request; running ones end.
    Draining,
    Failed(Failure),
}

/// Why a pipeline failed; the text names the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    /// The rank to blame.
    pub rank: Rank,
}

/// What happens to a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Staged(Rank),
    Progress(Rank, LoadProgress),
    /// The rank's edges are open and its weights are in memory.
    RankReady(Rank),
    /// The first prompt came through.
    Warmed,
    Drain,
    /// A rank ended or reported that it cannot go on. `blame`: the neighbour it accuses.
    RankFailed {
        rank: Rank,
        reason: String,
        blame: Option<Rank>,
    },
}

#[derive(Debug)]
pub struct Pipeline {
    state: State,
    nodes: Vec<String>,
    staged: Vec<bool>,
    ready: Vec<bool>,
    progress: Vec<LoadProgress>,
    deadline: Option<Duration>,
}

impl Pipeline {
    /// A pipeline whose rank k runs on `nodes[k]`.
    pub fn new(now: Duration, nodes: Vec<String>) -> Self {
        let world = nodes.len();
        let none = LoadProgress { layers_done: 0, layers_total: 0, resident_bytes: 0 };
        Self {
            state: State::Staging,
            staged: vec![false; world],
            ready: vec![false; world],
            progress: vec![none; world],
            deadline: Some(now + STAGING_MAX),
            nodes,
        }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Layers evaluated so far and in all, over all ranks.
    pub fn loaded(&self) -> (u32, u32) {
        // The numbers are the peers' own.
        let sum =
            |f: fn(&LoadProgress) -> u32| self.progress.iter().map(f).fold(0, u32::saturating_add);
        (sum(|p| p.layers_done), sum(|p| p.layers_total))
    }

    /// How far each rank has loaded, with the name of its node.
    pub fn ranks_loaded(&self) -> impl Iterator<Item = (&str, LoadProgress)> {
        self.nodes.iter().map(String::as_str).zip(self.progress.iter().copied())
    }

    /// Takes what happened; says whether the state changed.
    pub fn handle(&mut self, now: Duration, input: Input) -> bool {
        let before = self.state.clone();
        if matches!(self.state, State::Failed(_)) {
            return false;
        }
        match input {
            Input::Staged(rank) => {
                mark(&mut self.staged, rank);
                if self.state == State::Staging && self.staged.iter().all(|done| *done) {
                    self.enter(State::Loading, Some(now + PROGRESS_MAX));
                }
            }
            Input::Progress(rank, progress) => {
                if let Some(slot) = self.progress.get_mut(rank.0 as usize) {
                    *slot = progress;
                }
                if self.state == State::Loading {
                    // Loading has no deadline of its own as long as some rank gets on.
                    self.deadline = Some(now + PROGRESS_MAX);
                }
            }
            Input::RankReady(rank) => {
                mark(&mut self.ready, rank);
                if self.state == State::Loading && self.ready.iter().all(|done| *done) {
                    self.enter(State::Warming, Some(now + WARMING_MAX));
                }
            }
            Input::Warmed => {
                if self.state == State::Warming {
                    self.enter(State::Ready, None);
                }
            }
            Input::Drain => self.enter(State::Draining, None),
            Input::RankFailed { rank, reason, blame } => self.fail(rank, &reason, blame),
        }
        self.state != before
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Says whether the state changed.
    pub fn handle_timeout(&mut self, now: Duration) -> bool {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return false;
        }
        let (late, what) = match self.state {
            State::Staging => (&self.staged, "did not start"),
            State::Loading => (&self.ready, "made no progress while loading"),
            _ => (&self.ready, "did not pass a first prompt on"),
        };
        let rank = late.iter().position(|done| !done).unwrap_or(0);
        self.fail(Rank(u32::try_from(rank).unwrap_or(0)), what, None);
        true
    }

    fn enter(&mut self, state: State, deadline: Option<Duration>) {
        self.state = state;
        self.deadline = deadline;
    }

    fn fail(&mut self, rank: Rank, reason: &str, blame: Option<Rank>) {
        let node = |rank: Rank| self.nodes.get(rank.0 as usize).map_or("?", String::as_str);
        let reason = match blame {
            Some(other) if other != rank => format!(
                "rank {rank} on {} lost rank {other} on {}: {reason}",
                node(rank),
                node(other)
            ),
            _ => format!("rank {rank} on {} {reason}", node(rank)),
        };
        let rank = blame.unwrap_or(rank);
        self.enter(State::Failed(Failure { reason, rank }), None);
    }
}

fn mark(done: &mut [bool], rank: Rank) {
    if let Some(slot) = done.get_mut(rank.0 as usize) {
        *slot = true;
    }
}

/// A process starts and binds a socket: seconds even on a busy machine.
const STAGING_MAX: Duration = Duration::from_secs(30);
/// One layer from a cold disk over a slow bus; the edges' connect deadline is shorter.
const PROGRESS_MAX: Duration = Duration::from_mins(2);
/// The first forward compiles kernels: up to 79 s were seen.
const WARMING_MAX: Duration = Duration::from_mins(3);

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn two() -> Pipeline {
        Pipeline::new(s(0), vec!["studio".to_owned(), "mini".to_owned()])
    }

    fn staged() -> Pipeline {
        let mut pipeline = two();
        assert!(!pipeline.handle(s(1), Input::Staged(Rank(1))));
        assert!(pipeline.handle(s(1), Input::Staged(Rank(0))));
        pipeline
    }

    fn failure(pipeline: &Pipeline) -> (&str, Rank) {
        match pipeline.state() {
            State::Failed(failure) => (&failure.reason, failure.rank),
            other => panic!("expected a failure, found {other:?}"),
        }
    }

    #[test]
    fn it_is_ready_after_every_rank_and_the_warm_up() {
        let mut pipeline = staged();
        assert_eq!(*pipeline.state(), State::Loading);
        assert!(!pipeline.handle(s(2), Input::RankReady(Rank(0))));
        assert!(pipeline.handle(s(3), Input::RankReady(Rank(1))));
        assert_eq!(*pipeline.state(), State::Warming);
        assert!(pipeline.handle(s(4), Input::Warmed));
        assert_eq!((pipeline.state(), pipeline.poll_timeout()), (&State::Ready, None));
    }

    #[test]
    fn every_waiting_state_has_a_deadline_that_names_the_late_node() {
        let mut pipeline = two();
        pipeline.handle(s(1), Input::Staged(Rank(0)));
        assert!(!pipeline.handle_timeout(s(29)));
        assert!(pipeline.handle_timeout(s(30)));
        assert_eq!(failure(&pipeline), ("rank 1 on mini did not start", Rank(1)));

        let mut pipeline = staged();
        let progress = LoadProgress { layers_done: 3, layers_total: 9, resident_bytes: 1 };
        pipeline.handle(s(100), Input::Progress(Rank(1), progress));
        assert!(!pipeline.handle_timeout(s(200)), "progress moves the deadline");
        assert_eq!(pipeline.loaded(), (3, 9));
        let ranks: Vec<_> =
            pipeline.ranks_loaded().map(|(node, p)| (node, p.layers_done)).collect();
        assert_eq!(ranks, [("studio", 0), ("mini", 3)]);
        assert!(pipeline.handle_timeout(s(220)));
        assert_eq!(failure(&pipeline).0, "rank 0 on studio made no progress while loading");
    }

    #[test]
    fn the_first_failure_stays_and_names_both_ends_of_a_lost_edge() {
        let mut pipeline = staged();
        let lost = |rank, blame| Input::RankFailed { rank, reason: "timed out".to_owned(), blame };
        assert!(pipeline.handle(s(5), lost(Rank(0), Some(Rank(1)))));
        let expected = "rank 0 on studio lost rank 1 on mini: timed out";
        assert_eq!(failure(&pipeline), (expected, Rank(1)));
        assert!(!pipeline.handle(s(6), lost(Rank(1), None)));
        assert!(!pipeline.handle(s(6), Input::Warmed));
        assert_eq!(failure(&pipeline).0, expected);
    }
}
