//! Whether a machine still has the memory for a rank that loads or works there: samples in, one of
//! four steps out. Pure; a node takes the samples and does what the steps say.
//!
//! A machine that swaps is worse than one that refuses: an answer then takes minutes, or never ends,
//! and the whole machine with it. So a load is given up before it gets there, and a rank that works
//! first gives its caches back, then gets no new requests, and last its place is given up.

use std::time::Duration;

use daisy_proto::{Facts, Pressure};

use crate::units::Bytes;

/// Watches one rank.
#[derive(Debug)]
pub struct Guard {
    floor_bytes: u64,
    /// When the rank began; none: not known.
    swap_bytes: Option<u64>,
    phase: Phase,
    /// Samples in a row that were short of memory.
    short: u32,
    /// Samples in a row with plenty of it.
    calm: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Working,
    /// New requests are refused.
    Refusing,
}

/// What to do about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It gives back what it can do without.
    Shrink,
    /// It gets no new requests, for this reason.
    Refuse(String),
    /// It gets requests again.
    Resume,
    /// It ends now, for this reason.
    GiveUp(String),
}

impl Guard {
    /// As a rank starts on a machine that is so. `floor_bytes` overrides what must stay available.
    pub fn new(facts: &Facts, floor_bytes: Option<u64>) -> Self {
        let usual = (facts.memory_bytes / FLOOR_SHARE).min(FLOOR_MAX);
        Self {
            floor_bytes: floor_bytes.unwrap_or(usual),
            swap_bytes: facts.swap_used_bytes,
            phase: Phase::Loading,
            short: 0,
            calm: 0,
        }
    }

    /// The rank's weights are in memory.
    pub fn loaded(&mut self) {
        self.phase = Phase::Working;
        self.short = 0;
    }

    /// Until the next sample.
    pub fn interval(&self) -> Duration {
        match self.phase {
            Phase::Loading => LOADING_INTERVAL,
            Phase::Working | Phase::Refusing => WORKING_INTERVAL,
        }
    }

    /// Takes what the machine says now.
    pub fn take(&mut self, facts: &Facts) -> Option<Step> {
        let fault = self.fault(facts);
        self.short = if fault.is_some() { self.short + 1 } else { 0 };
        let plenty = self.floor_bytes.saturating_add(self.floor_bytes.min(FLOOR_MAX));
        let is_calm = fault.is_none() && facts.available_bytes >= plenty;
        self.calm = if is_calm { self.calm + 1 } else { 0 };
        match (self.phase, fault) {
            (Phase::Loading, Some(fault)) if self.short >= GIVE_UP_LOADING => {
                Some(Step::GiveUp(format!("loading was given up: {fault}")))
            }
            (Phase::Working, Some(_)) if self.short == 1 => Some(Step::Shrink),
            (Phase::Working, Some(fault)) if self.short >= REFUSE => {
                self.phase = Phase::Refusing;
                Some(Step::Refuse(fault))
            }
            (Phase::Refusing, Some(fault)) if self.short >= GIVE_UP => {
                Some(Step::GiveUp(format!("the model was unloaded: {fault}")))
            }
            (Phase::Refusing, None) if self.calm >= RESUME => {
                self.phase = Phase::Working;
                Some(Step::Resume)
            }
            _ => None,
        }
    }

    fn fault(&self, facts: &Facts) -> Option<String> {
        if facts.available_bytes < self.floor_bytes {
            let (left, floor) = (Bytes(facts.available_bytes), Bytes(self.floor_bytes));
            return Some(format!("{left} of memory are left, less than {floor}"));
        }
        if facts.pressure == Some(Pressure::Critical) {
            return Some("its system calls the memory pressure critical".to_owned());
        }
        // While a rank works, others may swap without harm to it.
        let before = self.swap_bytes.filter(|_| self.phase == Phase::Loading)?;
        let grown = facts.swap_used_bytes?.saturating_sub(before);
        (grown > SWAP_GROWTH_MAX).then(|| format!("it began to swap, by {}", Bytes(grown)))
    }
}

const LOADING_INTERVAL: Duration = Duration::from_millis(500);
const WORKING_INTERVAL: Duration = Duration::from_secs(2);
/// Of all memory one part in so many stays available, at most [`FLOOR_MAX`].
const FLOOR_SHARE: u64 = 64;
const FLOOR_MAX: u64 = 1 << 30;
/// A system that looks for room moves a little out at any time.
const SWAP_GROWTH_MAX: u64 = 512 << 20;
/// Samples in a row. One alone may be of a moment.
const GIVE_UP_LOADING: u32 = 2;
const REFUSE: u32 = 4;
const GIVE_UP: u32 = 10;
const RESUME: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn facts(available_bytes: u64) -> Facts {
        Facts {
            memory_bytes: 32 * GIB,
            available_bytes,
            swap_used_bytes: Some(GIB),
            pressure: Some(Pressure::Normal),
            ..Facts::default()
        }
    }

    /// Steps by the number of the sample.
    fn steps(guard: &mut Guard, samples: impl IntoIterator<Item = Facts>) -> Vec<(usize, Step)> {
        let taken = samples.into_iter().map(|facts| guard.take(&facts));
        taken.enumerate().filter_map(|(at, step)| Some((at, step?))).collect()
    }

    #[test]
    fn a_load_is_given_up_before_the_machine_swaps() {
        let swapping = Facts { swap_used_bytes: Some(2 * GIB), ..facts(4 * GIB) };
        let critical = Facts { pressure: Some(Pressure::Critical), ..facts(4 * GIB) };
        for (short, why) in [
            (facts(GIB / 4), "256.0 MiB of memory are left, less than 0.5 GiB"),
            (swapping, "it began to swap, by 1.0 GiB"),
            (critical, "its system calls the memory pressure critical"),
        ] {
            let mut guard = Guard::new(&facts(20 * GIB), None);
            assert_eq!(guard.interval(), Duration::from_millis(500));
            // One sample is of a moment.
            let samples = [short.clone(), facts(GIB), short.clone(), short.clone()];
            let given_up = Step::GiveUp(format!("loading was given up: {why}"));
            assert_eq!(steps(&mut guard, samples), [(3, given_up)]);
        }
    }

    #[test]
    fn a_rank_that_works_shrinks_then_refuses_then_ends() {
        let mut guard = Guard::new(&facts(20 * GIB), None);
        guard.loaded();
        assert_eq!(guard.interval(), Duration::from_secs(2));
        let steps = steps(&mut guard, vec![facts(GIB / 4); 10]);
        let why = "256.0 MiB of memory are left, less than 0.5 GiB";
        let expected = [
            (0, Step::Shrink),
            (3, Step::Refuse(why.to_owned())),
            (9, Step::GiveUp(format!("the model was unloaded: {why}"))),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn it_goes_on_when_there_is_plenty_again() {
        let mut guard = Guard::new(&facts(20 * GIB), None);
        guard.loaded();
        let short = vec![facts(GIB / 4); 4];
        // Just above the floor is not plenty.
        let barely = vec![facts(GIB * 3 / 4); 5];
        let plenty = vec![facts(8 * GIB); 3];
        let found = steps(&mut guard, short.into_iter().chain(barely).chain(plenty));
        let at: Vec<usize> = found.iter().map(|(at, _)| *at).collect();
        assert_eq!((at, &found[2].1), (vec![0, 3, 11], &Step::Resume));
        // Swap that grew since is others' business while the rank works.
        let swapping = Facts { swap_used_bytes: Some(9 * GIB), ..facts(4 * GIB) };
        assert_eq!(guard.take(&swapping), None);
    }

    #[test]
    fn the_floor_can_be_given() {
        let mut guard = Guard::new(&facts(20 * GIB), Some(10 * GIB));
        guard.loaded();
        assert_eq!(guard.take(&facts(9 * GIB)), Some(Step::Shrink));
        let small = Facts { memory_bytes: 8 * GIB, ..facts(GIB) };
        assert_eq!(Guard::new(&small, None).floor_bytes, GIB / 8);
        let large = Facts { memory_bytes: 512 * GIB, ..facts(GIB) };
        assert_eq!(Guard::new(&large, None).floor_bytes, GIB);
    }
}
