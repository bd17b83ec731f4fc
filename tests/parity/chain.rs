//! All ranks of one cut in one thread: what rank 0 gives goes to rank 1 and so on, and what the
//! last gives comes back to rank 0 for the head, as between processes.

use daisy::engine::{Draw, Engine, LoadRequest};
use daisy::model::ModelConfig;
use daisy::store::Checkpoint;
use daisy_proto::{Dtype, Hidden, LayerRange, Rank, Row, Sampling, SeqId, Shard};

/// Layers per rank.
pub type Cut = Vec<u32>;

/// Every cut of `layers` into `ranks` ranks of at least one layer.
pub fn cuts(layers: u32, ranks: u32) -> Vec<Cut> {
    if ranks == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=layers.saturating_sub(ranks - 1);
    let extend = |first| {
        cuts(layers - first, ranks - 1)
            .into_iter()
            .map(move |rest| [&[first], rest.as_slice()].concat())
    };
    first.flat_map(extend).collect()
}

pub struct Chain {
    ranks: Vec<Engine>,
}

/// What decoding gave.
#[derive(Debug, PartialEq)]
pub struct Decoded {
    pub tokens: Vec<u32>,
    /// Of the prompt's last position, then after each token.
    pub logits: Vec<Vec<f32>>,
}

impl Chain {
    pub fn load(checkpoint: &Checkpoint, config: &ModelConfig, cut: &[u32], dtype: Dtype) -> Self {
        Self::load_with(checkpoint, config, cut, dtype, true)
    }

    /// A chain whose last rank lets every position come back.
    pub fn load_untrimmed(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        cut: &[u32],
        dtype: Dtype,
    ) -> Self {
        Self::load_with(checkpoint, config, cut, dtype, false)
    }

    fn load_with(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        cut: &[u32],
        dtype: Dtype,
        last_trims: bool,
    ) -> Self {
        let mut start = 0;
        let ranks = (0..).zip(cut).map(|(rank, layers)| {
            let range = LayerRange::new(start, start + layers);
            start = range.end;
            let request = LoadRequest {
                files: checkpoint.files.clone(),
                config: config.clone(),
                shard: Shard::of(Rank(rank), range),
                is_last: last_trims && range.end == config.layers,
                dtype: Some(dtype),
            };
            Engine::load(&request, &mut |_| ()).expect("the shard loads")
        });
        Self { ranks: ranks.collect() }
    }

    /// One step: hidden state of the rows that want logits.
    pub fn step(&mut self, rows: &[Row], tokens: &[u32]) -> Hidden {
        let hidden = self.ranks[0].embed_forward(rows, tokens).expect("rank 0 computes");
        self.pass_on(rows, hidden)
    }

    pub fn logits(&mut self, hidden: &Hidden) -> Vec<f32> {
        self.ranks[0].logits(hidden.clone()).expect("the head computes")
    }

    /// Feeds `tokens` from position `first` in chunks of at most `chunk`; hidden state of the last.
    pub fn prefill(&mut self, seq: SeqId, first: u32, tokens: &[u32], chunk: usize) -> Hidden {
        let mut row = Row { seq, first, count: 0, logits: false };
        let mut fed = 0;
        let mut last = None;
        for part in tokens.chunks(chunk) {
            fed += part.len();
            row.first += row.count;
            row.count = u32::try_from(part.len()).expect("a chunk is short");
            row.logits = fed == tokens.len();
            let hidden = self.step(&[row], part);
            assert_eq!(hidden.tokens, u32::from(row.logits), "rows that come back");
            last = Some(hidden);
        }
        last.expect("a prompt has tokens")
    }

    /// Draws `count` tokens, the first of them at `position` from `hidden`.
    pub fn decode(
        &mut self,
        seq: SeqId,
        position: u32,
        mut hidden: Hidden,
        sampling: Sampling,
        count: u32,
    ) -> Decoded {
        let mut decoded = Decoded { tokens: Vec::new(), logits: vec![self.logits(&hidden)] };
        for position in position..position + count {
            let draw = Draw::new(seq, position, sampling);
            let sampled = self.ranks[0].sample(hidden, &[draw]).expect("rank 0 samples");
            decoded.tokens.extend(sampled.tokens().expect("a token"));
            let first = sampled.advanced().into_bytes().expect("the token went on through rank 0");
            hidden = self.pass_on(&[Row { seq, first: position, count: 1, logits: true }], first);
            decoded.logits.push(self.logits(&hidden));
        }
        decoded
    }

    /// A prompt and what follows it greedily.
    pub fn answer(&mut self, seq: SeqId, prompt: &[u32], count: u32) -> Decoded {
        let hidden = self.prefill(seq, 0, prompt, prompt.len());
        self.decode(seq, length(prompt), hidden, Sampling::greedy(), count)
    }

    pub fn release(&mut self, seq: SeqId) {
        for rank in &mut self.ranks {
            rank.release(&[seq]);
            assert_eq!(rank.cached(seq), 0, "a released sequence");
        }
    }

    fn pass_on(&mut self, rows: &[Row], hidden: Hidden) -> Hidden {
        let later = self.ranks[1..].iter_mut();
        later.fold(hidden, |hidden, rank| rank.forward(rows, hidden).expect("a rank computes"))
    }
}

/// The position that follows `tokens`.
pub fn length(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).expect("a prompt is short")
}

#[test]
fn cuts_are_all_there() {
    assert_eq!(cuts(4, 1), [[4]]);
    assert_eq!(cuts(4, 2), [[1, 3], [2, 2], [3, 1]]);
    assert_eq!(cuts(4, 4), [[1, 1, 1, 1]]);
    assert_eq!(cuts(5, 3).len(), 6);
    assert_eq!(cuts(2, 3).len(), 0);
}
