//! A mixture of experts (Shazeer et al. 2017, arXiv 1701.06538) as Qwen's models have it: a softmax
//! over all experts picks the best few of each token, and beside them a shared one may take every
//! token.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::compiled::{fused, inputs};
use super::mlp::{GATED, Mlp};
use super::quantised::Quantised;
use super::{Joined, Linear};
use crate::engine::error::EngineError;
use crate::engine::ffi;
use crate::engine::weights::{Matrix, Weights};
use crate::model::{Experts as Shape, ModelConfig};

/// What follows attention in a layer.
pub(in crate::engine) enum FeedForward {
    Dense(Mlp),
    Sparse(Box<Experts>),
}

/// `Σ score · expert(x)` over the chosen experts, `+ sigmoid(gate(x)) · shared(x)`.
pub(in crate::engine) struct Experts {
    router: Router,
    stacks: Stacks,
    shared: Option<Mlp>,
    on_gpu: bool,
}

/// `gate`, and the gate of the shared expert, which has the same input.
struct Router {
    gates: Gates,
    count: i32,
    per_token: i32,
    normalised: bool,
}

enum Gates {
    Experts(Linear),
    WithShared(Joined<2>),
}

/// Gate, up and down projections of all experts.
struct Stacks {
    gate_up: GateUp,
    down: Matrix,
    on_gpu: bool,
}

enum GateUp {
    /// The rows of each expert's gate and then of its up projection; how many each has.
    Joined(Matrix, i32),
    Each(Matrix, Matrix),
}

impl FeedForward {
    /// What layer `layer` of the model has at `path`.
    pub(in crate::engine) fn load(
        weights: &mut Weights<'_>,
        path: &str,
        layer: u32,
    ) -> Result<Self, EngineError> {
        let config: &ModelConfig = weights.config();
        match config.experts_of(layer) {
            None => Mlp::load(weights, path).map(Self::Dense),
            Some(shape) => Ok(Self::Sparse(Box::new(Experts::load(weights, path, shape)?))),
        }
    }

    pub(in crate::engine) fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Sparse(experts) => experts.forward(x),
        }
    }
}

impl Experts {
    fn load(weights: &mut Weights<'_>, path: &str, shape: &Shape) -> Result<Self, EngineError> {
        let shared =
            shape.shared_width.map(|_| Mlp::load(weights, &format!("{path}.shared_expert")));
        let gates = match shape.shared_width {
            None => Gates::Experts(weights.linear(&format!("{path}.gate"), false)?),
            Some(_) => {
                Gates::WithShared(weights.joined(path, ["gate", "shared_expert_gate"], false)?)
            }
        };
        Ok(Self {
            router: Router {
                gates,
                count: shape.count.cast_signed(),
                per_token: shape.per_token.cast_signed(),
                normalised: shape.normalised,
            },
            stacks: Stacks::load(weights, &format!("{path}.switch_mlp"), shape)?,
            shared: shared.transpose()?,
            on_gpu: weights.on_gpu(),
        })
    }

    /// `[tokens, hidden]` to the same.
    fn forward(&self, x: &Array) -> Result<Array, EngineError> {
        let (chosen, scores, shared_gate) = self.router.choose(x)?;
        let outputs = self.stacks.forward(x, &chosen)?;
        // [tokens, 1, chosen] times [tokens, chosen, hidden].
        let mixed = scores.expand_dims(1)?.matmul(&outputs)?.squeeze_axes(&[1])?;
        match (&self.shared, shared_gate) {
            (Some(shared), Some(gate)) => {
                let [sum] = WITH_SHARED.call(self.on_gpu, &[mixed, gate, shared.forward(x)?])?;
                Ok(sum)
            }
            _ => Ok(mixed),
        }
    }
}

impl Router {
    /// Each token's experts and their scores, both `[tokens, chosen]`; and the shared one's gate.
    fn choose(&self, x: &Array) -> Result<(Array, Array, Option<Array>), EngineError> {
        let (logits, shared_gate) = match &self.gates {
            Gates::Experts(gate) => (gate.forward(x)?, None),
            Gates::WithShared(gates) => {
                let [gate, shared] = gates.forward(x)?;
                (gate, Some(shared))
            }
        };
        let all = ops::softmax_axis(&logits, -1, true)?;
        let order = ops::argpartition_axis(&all, -self.per_token, -1)?;
        let (tokens, count) = (x.dim(0), self.count);
        let chosen = ffi::slice(&order, &[0, count - self.per_token], &[tokens, count])?;
        let scores = all.take_along_axis(&chosen, -1)?;
        if !self.normalised {
            return Ok((chosen, scores, shared_gate));
        }
        let scores = scores.divide(scores.sum_axis(-1, true)?)?;
        Ok((chosen, scores, shared_gate))
    }
}

impl Stacks {
    fn load(weights: &mut Weights<'_>, path: &str, shape: &Shape) -> Result<Self, EngineError> {
        let [gate, up, down] = weights.experts(path, shape.count)?;
        let on_gpu = weights.on_gpu();
        let joined = if on_gpu { Matrix::joined(&[&gate, &up], 1)? } else { None };
        let gate_up = match joined {
            Some(joined) => GateUp::Joined(joined, shape.width.cast_signed()),
            None => GateUp::Each(gate, up),
        };
        match &gate_up {
            GateUp::Joined(joined, _) => weights.made(joined.arrays()),
            GateUp::Each(gate, up) => {
                weights.made(gate.arrays());
                weights.made(up.arrays());
            }
        }
        weights.made(down.arrays());
        Ok(Self { gate_up, down, on_gpu })
    }

    /// `[tokens, hidden]` and experts `[tokens, chosen]` to `[tokens, chosen, hidden]`.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array, EngineError> {
        let (tokens, per_token, hidden) = (x.dim(0), chosen.dim(1), x.dim(1));
        let pairs = tokens * per_token;
        if pairs < SORTED_MIN {
            let x = x.reshape(&[tokens, 1, 1, hidden])?;
            return Ok(self.run(&x, chosen, false)?.squeeze_axes(&[-2])?);
        }
        // The tokens of one expert side by side, so that its weights are read once.
        let flat = chosen.reshape(&[pairs])?;
        let order = ops::argsort_axis(&flat, 0)?;
        let back = ops::argsort_axis(&order, 0)?;
        let token = order.floor_divide(Array::from_slice(&[per_token.cast_unsigned()], &[1]))?;
        let x = x.take_axis(token, 0)?.reshape(&[pairs, 1, hidden])?;
        let outputs = self.run(&x, &flat.take_axis(&order, 0)?, true)?;
        Ok(outputs.take_axis(back, 0)?.reshape(&[tokens, per_token, hidden])?)
    }

    /// `[…, 1, hidden]` through the expert that each of `indices` names.
    fn run(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array, EngineError> {
        let [gate, up] = match &self.gate_up {
            GateUp::Each(gate, up) => {
                [gather(gate, x, indices, sorted)?, gather(up, x, indices, sorted)?]
            }
            GateUp::Joined(both, width) => {
                let both = gather(both, x, indices, sorted)?;
                let (start, mut end) = (vec![0; both.ndim()], both.shape().to_vec());
                let mut middle = start.clone();
                let last = both.ndim() - 1;
                (end[last], middle[last]) = (*width, *width);
                [ffi::slice(&both, &start, &end)?, ffi::slice(&both, &middle, both.shape())?]
            }
        };
        let [gated] = GATED.call(self.on_gpu, &[gate, up])?;
        gather(&self.down, &gated, indices, sorted)
    }
}

fn gather(stack: &Matrix, x: &Array, indices: &Array, sorted: bool) -> Result<Array, EngineError> {
    match stack {
        Matrix::Plain(weight) => {
            Ok(ops::gather_mm(x, weight.swap_axes(-1, -2)?, None, Some(indices), sorted)?)
        }
        Matrix::Quantised(weight) => weight.gather(x, indices, sorted),
    }
}

impl Matrix {
    /// One with the rows of `parts` behind each other along `axis`; none where their forms differ.
    fn joined<'a>(parts: &[&'a Self], axis: i32) -> Result<Option<Self>, EngineError> {
        let plain = |part: &&Self| match part {
            Self::Plain(weight) => Some(weight.clone()),
            Self::Quantised(_) => None,
        };
        if let Some(weights) = parts.iter().map(plain).collect::<Option<Vec<Array>>>() {
            return Ok(Some(Self::Plain(ops::concatenate(&weights, axis)?)));
        }
        let quantised = |part: &&'a Self| match part {
            Self::Plain(_) => None,
            Self::Quantised(weight) => Some(weight),
        };
        let Some(all) = parts.iter().map(quantised).collect::<Option<Vec<&'a Quantised>>>() else {
            return Ok(None);
        };
        Ok(Quantised::joined(&all, axis)?.map(Self::Quantised))
    }
}

/// `mixed + sigmoid(gate) · shared`.
fn with_shared(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let [mixed, gate, shared] = inputs(arrays)?;
    Ok(vec![mixed.add(ops::sigmoid(gate)?.multiply(shared)?)?])
}
fused!(WITH_SHARED, with_shared);

/// Pairs of token and expert from which on sorting them pays.
const SORTED_MIN: i32 = 64;
