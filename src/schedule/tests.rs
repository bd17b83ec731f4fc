use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::ZERO;
const EOS: u32 = 2;

fn admit(seq: u64, prompt: u32, max_tokens: u32) -> Admit {
    Admit {
        seq: SeqId(seq),
        prompt: (0..prompt).map(|i| 100 + i).collect(),
        max_tokens,
        eos: vec![EOS],
        sampling: Sampling::greedy(),
        bias: Vec::new(),
        logprobs: None,
    }
}

fn token(pick: Pick, token: u32) -> Vec<Drawn> {
    vec![Drawn { pick, token, logprobs: None }]
}

/// Sends the next chunk and says its row.
fn send_chunk(scheduler: &mut Scheduler) -> Option<(u64, Row)> {
    let chunk = scheduler.next_chunk(NOW)?;
    let row = chunk.rows[0];
    assert_eq!(chunk.tokens.len(), row.count as usize);
    Some((scheduler.sent(chunk.rows).0, row))
}

/// A step comes back; what may be drawn then, of all groups.
fn picks(scheduler: &mut Scheduler, number: u64) -> Vec<Pick> {
    scheduler.returned(number).expect("in order");
    std::iter::from_fn(|| scheduler.next_group()).flatten().collect()
}

/// With room for everything.
fn new(world: u32, chunk: u32) -> Scheduler {
    Scheduler::new(world, chunk, Budget { sequences: 64, tokens: 1 << 20 })
}

#[test]
fn a_prompt_goes_out_in_chunks_and_only_the_last_wants_logits() {
    let mut scheduler = new(2, 10);
    scheduler.admit(NOW, admit(1, 25, 4)).expect("admitted");
    let rows: Vec<Row> = (0..3).map(|_| send_chunk(&mut scheduler).expect("a chunk").1).collect();
    let shape: Vec<_> = rows.iter().map(|r| (r.first, r.count, r.logits)).collect();
    assert_eq!(shape, [(0, 10, false), (10, 10, false), (20, 5, true)]);
    assert!(send_chunk(&mut scheduler).is_none(), "the whole prompt is out");
}

#[test]
fn one_prompt_has_at_most_one_chunk_more_than_ranks_in_flight() {
    let mut scheduler = new(2, 1);
    scheduler.admit(NOW, admit(1, 25, 4)).expect("admitted");
    let sent = std::iter::from_fn(|| send_chunk(&mut scheduler)).count();
    assert_eq!(sent, 3);
    picks(&mut scheduler, 0);
    assert!(send_chunk(&mut scheduler).is_some(), "a returned chunk makes room");
}

#[test]
fn a_sequence_ends_at_eos_without_sending_its_computed_ahead_row() {
    let mut scheduler = new(2, 10);
    scheduler.admit(NOW, admit(1, 3, 9)).expect("admitted");
    send_chunk(&mut scheduler).expect("a chunk");
    let pick = picks(&mut scheduler, 0)[0];
    assert_eq!((pick.position, pick.advance), (3, true));
    let (outputs, rows) = scheduler.drawn(NOW, token(pick, EOS));
    assert_eq!(rows, []);
    assert_eq!(outputs[0], Output::Token { seq: SeqId(1), index: 0, token: EOS, logprobs: None });
    assert!(matches!(outputs[1], Output::Finished { reason: FinishReason::Stop, .. }));
    assert!(scheduler.owes_release() && scheduler.is_idle());
    assert_eq!(scheduler.sent(Vec::new()), (1, vec![SeqId(1)]));
    assert!(!scheduler.owes_release());
}

#[test]
fn the_last_token_by_max_tokens_is_not_fused() {
    let mut scheduler = new(1, 10);
    scheduler.admit(NOW, admit(1, 3, 2)).expect("admitted");
    send_chunk(&mut scheduler).expect("a chunk");
    let first = picks(&mut scheduler, 0)[0];
    assert!(first.advance);
    let (_, rows) = scheduler.drawn(NOW, token(first, 7));
    assert_eq!(rows, [Row { seq: SeqId(1), first: 3, count: 1, logits: true }]);
    scheduler.sent_group(rows);
    let last = picks(&mut scheduler, 1)[0];
    assert!(!last.advance);
    let (outputs, rows) = scheduler.drawn(NOW, token(last, 7));
    assert!(matches!(outputs[1], Output::Finished { reason: FinishReason::Length, .. }));
    assert_eq!(rows, []);
}

#[test]
fn a_cancelled_sequence_is_released_only_when_nothing_of_it_is_in_flight() {
    let mut scheduler = new(2, 2);
    scheduler.admit(NOW, admit(1, 9, 4)).expect("admitted");
    send_chunk(&mut scheduler).expect("a chunk");
    send_chunk(&mut scheduler).expect("a chunk");
    assert!(matches!(
        scheduler.cancel(NOW, SeqId(1)),
        Some(Output::Finished { reason: FinishReason::Cancelled, .. })
    ));
    assert_eq!(scheduler.cancel(NOW, SeqId(1)), None, "once");
    assert!(send_chunk(&mut scheduler).is_none());
    assert_eq!(picks(&mut scheduler, 0), []);
    assert!(!scheduler.owes_release());
    assert_eq!(picks(&mut scheduler, 1), []);
    assert!(scheduler.owes_release());
}

/// Rank 0 knows every token before the draw of the next one: so penalties never miss one, though a
/// token and the step after it are one submission.
#[test]
fn what_was_said_is_complete_at_every_draw() {
    let penalised = Sampling { presence_penalty: 1.0, ..Sampling::greedy() };
    for (sampling, expected) in [
        (penalised, [vec![(100, 0), (101, 0)], vec![(7, 1), (100, 0), (101, 0)]]),
        (Sampling::greedy(), [vec![], vec![]]),
    ] {
        let mut scheduler = new(2, 10);
        let bias = vec![(7, 0.5)];
        let asked = Admit { sampling, bias, logprobs: Some(3), ..admit(1, 2, 9) };
        scheduler.admit(NOW, asked).expect("admitted");
        send_chunk(&mut scheduler).expect("a chunk");
        for (number, past) in (0..).zip(&expected) {
            let pick = picks(&mut scheduler, number)[0];
            assert_eq!(pick.logprobs, Some(3));
            assert_eq!(scheduler.past(SeqId(1)), past);
            assert_eq!(scheduler.bias(SeqId(1)), [(7, 0.5)]);
            let logprobs = Some(Logprobs { drawn: -1.0, top: vec![] });
            let drawn = Drawn { pick, token: 7, logprobs: logprobs.clone() };
            let (outputs, rows) = scheduler.drawn(NOW, vec![drawn]);
            let index = u32::try_from(number).expect("small");
            assert_eq!(outputs, [Output::Token { seq: SeqId(1), index, token: 7, logprobs }]);
            scheduler.sent_group(rows);
        }
        assert_eq!(scheduler.past(SeqId(2)), []);
    }
}

#[test]
fn bad_input_is_refused() {
    let mut scheduler = new(1, 4);
    assert_eq!(scheduler.admit(NOW, admit(1, 0, 1)), Err(ScheduleError::Empty(SeqId(1))));
    assert_eq!(scheduler.admit(NOW, admit(1, 1, 0)), Err(ScheduleError::Empty(SeqId(1))));
    scheduler.admit(NOW, admit(1, 1, 1)).expect("admitted");
    assert_eq!(scheduler.admit(NOW, admit(1, 1, 1)), Err(ScheduleError::Doubled(SeqId(1))));
    assert_eq!(scheduler.returned(0), Err(ScheduleError::OutOfOrder { expected: None, got: 0 }));
}

/// One token for each of a group, and its next step; says the step and who is in it.
fn advance(scheduler: &mut Scheduler, group: Vec<Pick>) -> Option<(u64, Vec<u64>)> {
    let drawn = group.into_iter().map(|pick| Drawn { pick, token: 7, logprobs: None });
    let (_, rows) = scheduler.drawn(NOW, drawn.collect());
    let seqs = rows.iter().map(|row| row.seq.0).collect();
    (!rows.is_empty()).then(|| (scheduler.sent_group(rows).0, seqs))
}

/// A step comes back and every group that may go on does.
fn go_round(scheduler: &mut Scheduler, number: u64) -> Vec<(u64, Vec<u64>)> {
    scheduler.returned(number).expect("in order");
    let mut steps = Vec::new();
    while let Some(group) = scheduler.next_group() {
        steps.extend(advance(scheduler, group));
    }
    steps
}

#[test]
fn one_rank_decodes_all_in_one_group_and_newcomers_join_it() {
    let mut scheduler = new(1, 10);
    for seq in 1..=3 {
        scheduler.admit(NOW, admit(seq, 3, 9)).expect("admitted");
    }
    send_chunk(&mut scheduler).expect("a chunk");
    assert_eq!(go_round(&mut scheduler, 0), [(1, vec![1])]);
    send_chunk(&mut scheduler).expect("a second prompt beside it");
    send_chunk(&mut scheduler).expect("and a third");
    // The group comes round first, and goes on alone: nobody else is there yet.
    assert_eq!(go_round(&mut scheduler, 1), [(4, vec![1])]);
    // They wait for the group that is under way, and then all are one.
    assert_eq!(go_round(&mut scheduler, 2), []);
    assert_eq!(go_round(&mut scheduler, 3), []);
    assert_eq!(go_round(&mut scheduler, 4), [(5, vec![2, 3, 1])]);
    assert_eq!(go_round(&mut scheduler, 5), [(6, vec![2, 3, 1])]);
}

#[test]
fn every_rank_has_a_group_of_an_equal_share() {
    let mut scheduler = new(2, 10);
    for seq in 1..=5 {
        scheduler.admit(NOW, admit(seq, 3, 99)).expect("admitted");
    }
    let mut flying: VecDeque<u64> = VecDeque::new();
    let mut sizes = Vec::new();
    for _ in 0..40 {
        while let Some((number, _)) = send_chunk(&mut scheduler) {
            flying.push_back(number);
        }
        let number = flying.pop_front().expect("something is under way");
        let steps = go_round(&mut scheduler, number);
        sizes = steps.iter().map(|(_, seqs)| seqs.len()).chain(sizes).take(2).collect();
        flying.extend(steps.into_iter().map(|(number, _)| number));
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 3]);
    assert_eq!(scheduler.groups_in_flight(), 2);
    // Two end: nobody keeps more than half of the rest.
    for seq in [1, 2] {
        scheduler.cancel(NOW, SeqId(seq));
    }
    for _ in 0..6 {
        let number = flying.pop_front().expect("something is under way");
        for (number, seqs) in go_round(&mut scheduler, number) {
            flying.push_back(number);
            assert!(seqs.len() <= 3);
        }
    }
    assert!(scheduler.in_flight.iter().all(|step| step.rows.len() <= 2));
}

#[test]
fn when_the_budget_runs_out_the_youngest_gives_way_and_goes_on_where_it_was() {
    // Two blocks: each sequence takes one until it grows beyond it.
    let mut scheduler = Scheduler::new(1, 1000, Budget { sequences: 8, tokens: 512 });
    scheduler.admit(NOW, admit(1, 254, 9)).expect("admitted");
    scheduler.admit(NOW, admit(2, 10, 9)).expect("admitted");
    send_chunk(&mut scheduler).expect("a chunk");
    assert_eq!(go_round(&mut scheduler, 0), [(1, vec![1])]);
    send_chunk(&mut scheduler).expect("a chunk");
    assert_eq!(go_round(&mut scheduler, 1), [(3, vec![1])]);
    // Position 256 of the first begins its second block.
    assert_eq!(go_round(&mut scheduler, 2), []);
    assert_eq!(go_round(&mut scheduler, 3), [(4, vec![1])]);
    assert_eq!(scheduler.freed(), [SeqId(2)]);
    assert!(send_chunk(&mut scheduler).is_none(), "there is no room for it");
    let mut number = 4;
    while let [(next, _)] = go_round(&mut scheduler, number)[..] {
        number = next;
    }
    assert_eq!(scheduler.cancel(NOW, SeqId(1)), None, "it ended by itself");
    let chunk = scheduler.next_chunk(NOW).expect("now there is");
    assert_eq!(chunk.rows, [Row { seq: SeqId(2), first: 0, count: 10, logits: true }]);
}

#[test]
fn who_gave_way_draws_nothing_anew() {
    let mut scheduler = Scheduler::new(1, 1000, Budget { sequences: 8, tokens: 512 });
    scheduler.admit(NOW, admit(1, 250, 99)).expect("admitted");
    scheduler.admit(NOW, admit(2, 10, 9)).expect("admitted");
    let mut next: Vec<u64> = Vec::new();
    let mut chunks = 0;
    let mut again = None;
    for _ in 0..200 {
        while let Some(chunk) = scheduler.next_chunk(NOW) {
            chunks += 1;
            if chunks > 2 {
                again.get_or_insert(chunk.clone());
            }
            next.push(scheduler.sent(chunk.rows).0);
        }
        if next.is_empty() {
            break;
        }
        let steps = go_round(&mut scheduler, next.remove(0));
        next.extend(steps.into_iter().map(|(number, _)| number));
    }
    // The prompt and what it had said: all of it known, none of it drawn again.
    let again = again.expect("the second begins again when the first has ended");
    assert_eq!(again.rows[0].seq, SeqId(2));
    assert!(again.rows[0].count > 10, "{again:?}");
    assert!(again.tokens[..10].iter().all(|token| *token >= 100));
    assert!(again.tokens[10..].iter().all(|token| *token == 7));
    assert!(scheduler.is_idle());
}

#[derive(Debug, Clone)]
enum Op {
    Admit { prompt: u32, max_tokens: u32 },
    Cancel(usize),
    Chunk,
    Return { eos: bool },
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (prop_oneof![1..40u32, 240..256u32], prop_oneof![1..6u32, 20..60u32])
            .prop_map(|(prompt, max_tokens)| Op::Admit { prompt, max_tokens }),
        any::<usize>().prop_map(Op::Cancel),
        Just(Op::Chunk),
        Just(Op::Chunk),
        any::<bool>().prop_map(|eos| Op::Return { eos }),
        Just(Op::Return { eos: false }),
        Just(Op::Release),
    ]
}

/// Follows what the ranks would hold and what the node hears.
#[derive(Default)]
struct World {
    in_flight: VecDeque<u64>,
    cached: BTreeMap<SeqId, u32>,
    told: BTreeMap<SeqId, u32>,
    finished: BTreeSet<SeqId>,
    admitted: u64,
}

impl World {
    fn send(&mut self, (number, released): (u64, Vec<SeqId>), rows: Vec<Row>) {
        for seq in released {
            self.cached.remove(&seq).expect("only what was computed is released, once");
        }
        for row in rows {
            let cached = self.cached.entry(row.seq).or_default();
            assert_eq!(*cached, row.first, "rows of a sequence follow one another");
            *cached += row.count;
        }
        self.in_flight.push_back(number);
        assert!(self.in_flight.len() <= IN_FLIGHT_MAX);
    }

    fn hear(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Token { seq, index, .. } => {
                    assert!(!self.finished.contains(&seq));
                    let told = self.told.entry(seq).or_default();
                    assert_eq!(*told, index, "each token once, in order");
                    *told += 1;
                }
                Output::Finished { seq, .. } => assert!(self.finished.insert(seq), "ends once"),
            }
        }
    }

    fn back(&mut self, scheduler: &mut Scheduler, token: u32) {
        let Some(number) = self.in_flight.pop_front() else { return };
        scheduler.returned(number).expect("in order");
        while let Some(group) = scheduler.next_group() {
            let drawn = group.into_iter().flat_map(|pick| self::token(pick, token));
            let (outputs, rows) = scheduler.drawn(NOW, drawn.collect());
            self.hear(outputs);
            if !rows.is_empty() {
                self.send(scheduler.sent_group(rows.clone()), rows);
            }
            self.keeps_to(scheduler);
        }
    }

    /// What is cached stays within the budget, but for a sequence alone; groups are fair.
    fn keeps_to(&self, scheduler: &Scheduler) {
        let blocks = self.cached.values().map(|cached| u64::from(*cached).next_multiple_of(256));
        let is_within = blocks.sum::<u64>() <= scheduler.budget.tokens;
        assert!(is_within || self.cached.len() < 2, "{:?}", self.cached);
        assert!(scheduler.groups_in_flight() <= scheduler.world);
        assert!(scheduler.active.len() <= scheduler.budget.sequences as usize);
    }

    fn apply(&mut self, scheduler: &mut Scheduler, op: &Op) {
        match *op {
            Op::Admit { prompt, max_tokens } => {
                self.admitted += 1;
                scheduler.admit(NOW, admit(self.admitted, prompt, max_tokens)).expect("new");
            }
            Op::Cancel(pick) if self.admitted > 0 => {
                let seq = SeqId(1 + pick as u64 % self.admitted);
                let output = scheduler.cancel(NOW, seq);
                self.hear(output.into_iter().collect());
            }
            Op::Cancel(_) => {}
            Op::Chunk => {
                if let Some(chunk) = scheduler.next_chunk(NOW) {
                    self.send(scheduler.sent(chunk.rows.clone()), chunk.rows);
                    self.keeps_to(scheduler);
                }
            }
            Op::Return { eos } => self.back(scheduler, if eos { EOS } else { 7 }),
            Op::Release => {
                if scheduler.owes_release() {
                    self.send(scheduler.sent(Vec::new()), Vec::new());
                }
            }
        }
    }
}

proptest! {
    /// Whatever happens in whatever order: every sequence ends once, all KV is freed, and the
    /// frames in flight stay under their bound.
    #[test]
    fn no_sequence_is_lost_doubled_or_stuck(
        world in 1..5u32,
        chunk in 1..12u32,
        sequences in 1..9u32,
        blocks in 1..6u64,
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let budget = Budget { sequences, tokens: 256 * blocks };
        let mut scheduler = Scheduler::new(world, chunk, budget);
        let mut state = World::default();
        for op in &ops {
            state.apply(&mut scheduler, op);
        }
        // Then undisturbed work must bring everything to its end.
        for _ in 0..100_000 {
            if scheduler.is_idle() && state.in_flight.is_empty() && !scheduler.owes_release() {
                break;
            }
            for op in [Op::Chunk, Op::Return { eos: false }, Op::Release] {
                state.apply(&mut scheduler, &op);
            }
        }
        prop_assert!(scheduler.is_idle());
        prop_assert_eq!(state.finished.len() as u64, state.admitted);
        prop_assert!(state.cached.is_empty(), "KV left: {:?}", state.cached);
    }
}
