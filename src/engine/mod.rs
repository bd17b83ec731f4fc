//! MLX: a shard of a model, from its weights to hidden states and tokens.
//!
//! The engine takes host bytes and gives host bytes; it knows neither peers nor text, and an array
//! never leaves the thread that made the engine. Each call is a step, handed to the device without
//! a wait: as one submission, on a GPU in pieces; sampling submits its tokens early, on their own. A
//! split changes nothing of the arithmetic: every rank computes all positions of a step, and only
//! the bytes that leave the last one are cut down to the positions that were asked for.
//!
//! Start at [`Engine`]; then `families` (what a layer is), `layers` (its parts), `cache`, `weights`
//! and `sample`. `ffi` holds every `unsafe`.

mod cache;
mod carried;
mod draw;
mod error;
mod families;
mod ffi;
mod host;
mod kernels;
mod layers;
mod logprobs;
mod sample;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::HashSet;
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::path::PathBuf;

use daisy_proto::control::LoadProgress;
use daisy_proto::{Dtype, Hidden, Row, SeqId, Shard};
use mlx_rs::{Array, Device, DeviceType, memory};

use crate::model::spec::{EMBEDDING, HEAD, NORM};
use crate::model::{ModelConfig, compute_dtype};
use cache::{Caches, KeysValuesShape, LayerShape};
use families::{Block, StepContext};
use host::{Submissions, all_rows, array_of, mlx_dtype, size, values, wanted_rows};
use layers::{Embedding, Linear, RmsNorm, Span};
use logprobs::Computed;
use weights::Weights;

pub use carried::{Carried, OnDevice};
pub use draw::Draw;
pub use error::EngineError;
pub use ffi::{blas_name, exit_now};
pub use host::Sampled;
pub use kernels::{KernelsError, MacOs, check_kernels};

/// What a process that computes must have in its environment before MLX starts in it; what the user
/// set goes before.
///
/// For CUDA: with cuDNN's attention MLX gives other bits each time that the same sequence is decoded
/// (seen with 0.32.2 and cuDNN 9.19), so no cut could be compared with another. Its own kernels do
/// not, and take as long but for the first pass over a long prompt.
pub const ENVIRONMENT: [(&str, &str); 1] = [("MLX_CUDA_USE_CUDNN_SDPA", "0")];

/// What to load.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    /// The safetensors files that hold the shard; others may be among them.
    pub files: Vec<PathBuf>,
    pub config: ModelConfig,
    pub shard: Shard,
    /// Whether this is the chain's last rank, whose hidden states go to the head.
    pub is_last: bool,
    /// Overrides the compute type; none: f32 on a CPU, the checkpoint's own on a GPU.
    pub dtype: Option<Dtype>,
}

/// A loaded shard with the caches of its sequences. Lives on the thread that loaded it.
pub struct Engine {
    config: ModelConfig,
    is_last: bool,
    dtype: Dtype,
    device: String,
    embedding: Option<Embedding>,
    blocks: Vec<Block>,
    head: Option<Head>,
    caches: Caches,
    resident_bytes: u64,
    submissions: Submissions,
    /// Whether an idle device gets a step in pieces. On a CPU that gains nothing: its queue is short,
    /// and whoever hands over a step waits for most of it.
    in_pieces: bool,
    /// MLX's streams belong to their thread.
    not_send: PhantomData<*const ()>,
}

/// The final norm and the output projection; none: the embedding's matrix.
struct Head {
    norm: RmsNorm,
    projection: Option<Linear>,
}

impl Engine {
    /// Finds, checks and reads the shard's tensors; `progress` hears of each layer.
    pub fn load(
        request: &LoadRequest,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        check_kernels()?;
        ffi::install_error_handler()?;
        memory::set_cache_limit(CACHE_BYTES_MAX)?;
        let LoadRequest { files, config, shard, is_last, dtype } = request;
        let (mut weights, expected) = Weights::open(files, config, shard)?;
        let on_gpu = on_gpu()?;
        let dtype = dtype.unwrap_or_else(|| compute_dtype(on_gpu, config, &expected));
        weights.compute_in(mlx_dtype(dtype), on_gpu);

        let mut report = |layers_done| {
            let resident_bytes = active()?;
            let layers_total = shard.layers.len();
            progress(LoadProgress { layers_done, layers_total, resident_bytes });
            Ok::<_, EngineError>(resident_bytes)
        };
        report(0)?;
        let tied_head = shard.has_head && config.tied;
        let embedding = if shard.has_embedding || tied_head {
            Some(weights.embedding(EMBEDDING)?)
        } else {
            None
        };
        weights.finish_part()?;
        let mut blocks = Vec::new();
        for (done, layer) in (1..).zip(shard.layers.iter()) {
            blocks.push(Block::load(&mut weights, layer)?);
            weights.finish_part()?;
            report(done)?;
        }
        let head = if shard.has_head { Some(Head::load(&mut weights, tied_head)?) } else { None };
        weights.finish_part()?;
        weights.finish()?;
        let resident_bytes = report(shard.layers.len())?;
        let kept = shard.layers.iter().map(|layer| layer_shape(config, layer, dtype)).collect();
        Ok(Self {
            config: config.clone(),
            is_last: *is_last,
            dtype,
            device: device_name(on_gpu),
            embedding,
            caches: Caches::new(kept, config.delta.is_some()),
            blocks,
            head,
            resident_bytes,
            submissions: Submissions::default(),
            in_pieces: on_gpu,
            not_send: PhantomData,
        })
    }

    /// The compute type; hidden states leave in it and may come in any.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Elements of a hidden state's row.
    pub const fn width(&self) -> u32 {
        self.config.hidden
    }

    /// What MLX held when the shard was loaded.
    pub const fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// What computes, as people read it: `cpu (reference BLAS)`, `gpu (Apple M3 Max)`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Rank 0: embeds `tokens`, the rows' one behind the other, and runs them through the layers.
    ///
    /// Gives all positions; from the last rank, only the last position of each row with `logits`.
    pub fn embed_forward(&mut self, rows: &[Row], tokens: &[u32]) -> Result<Hidden, EngineError> {
        if self.embedding.is_none() {
            return Err(EngineError::NotThisShard("no embedding"));
        }
        same_count("tokens of a step", positions(rows), tokens.len() as u64)?;
        let vocab = self.config.vocab;
        if let Some(&token) = tokens.iter().find(|token| **token >= vocab) {
            return Err(EngineError::Token { token, vocab });
        }
        if rows.is_empty() {
            return Ok(Hidden::empty(self.dtype, self.width()));
        }
        let spans = self.admit(rows)?;
        let ids = Array::from_slice(tokens, &[size(tokens.len() as u64)?]);
        let output = self.run(self.embed(&ids)?, &spans, true)?;
        self.finish(output, rows)
    }

    /// A later rank: runs the hidden state of the rows, one behind the other, through the layers.
    /// Gives the same as [`Engine::embed_forward`].
    pub fn forward(&mut self, rows: &[Row], hidden: Hidden) -> Result<Hidden, EngineError> {
        same_count("positions of a hidden state", positions(rows), u64::from(hidden.tokens))?;
        self.check_hidden(&hidden)?;
        if rows.is_empty() {
            return Ok(Hidden::empty(self.dtype, self.width()));
        }
        let spans = self.admit(rows)?;
        let input = array_of(&hidden, self.dtype)?;
        drop(hidden);
        let output = self.run(input, &spans, true)?;
        self.finish(output, rows)
    }

    /// Rank 0: draws a token from each row of `hidden` and runs those with `advance` through the
    /// embedding and the layers. All of it is handed to the device; nothing is waited for.
    pub fn sample(
        &mut self,
        hidden: impl Into<Carried>,
        draws: &[Draw<'_>],
    ) -> Result<Sampled, EngineError> {
        let hidden = hidden.into();
        // Rows that stayed on the device may still be computed there.
        let idle = matches!(hidden, Carried::Bytes(_));
        same_count("draws of a hidden state", u64::from(hidden.tokens()), draws.len() as u64)?;
        self.check_carried(&hidden)?;
        draws.iter().try_for_each(|draw| draw.check(self.config.vocab))?;
        let mut sampled = Sampled::nothing(self.dtype, self.width());
        if draws.is_empty() {
            return Ok(sampled);
        }
        let rows: Vec<Row> = draws.iter().filter(|draw| draw.advance).map(Draw::row).collect();
        if self.head.is_none() || (self.embedding.is_none() && !rows.is_empty()) {
            return Err(EngineError::NotThisShard("no embedding and head"));
        }
        let spans = self.admit(&rows)?;
        let logits = self.head_logits(hidden)?;
        let tokens = sample::sample(&logits, draws)?;
        sampled.logprobs = logprobs(&logits, &tokens, draws)?;

        // MLX marks an evaluation's arrays as done all at once, so the tokens go first on their
        // own; the rest follows while they are computed, with no wait between.
        let likelihoods = sampled.logprobs.iter().flatten().flat_map(Computed::arrays);
        sampled.tokens = Some(self.submissions.submit(tokens.clone(), likelihoods)?);
        if !rows.is_empty() {
            let advanced = self.run(self.embed(&going_on(&tokens, draws)?)?, &spans, idle)?;
            let beside = self.caches.updated(&rows);
            let count =
                u32::try_from(rows.len()).map_err(|_| EngineError::Internal("too many rows"))?;
            sampled.advanced = Some((self.submissions.submit(advanced, beside)?, count));
        }
        Ok(sampled)
    }

    /// The logits of each row of `hidden`, `[rows, vocab]` row-major.
    pub fn logits(&mut self, hidden: Hidden) -> Result<Vec<f32>, EngineError> {
        self.check_hidden(&hidden)?;
        if hidden.tokens == 0 {
            return Ok(Vec::new());
        }
        let logits = self.head_logits(hidden.into())?.as_dtype(mlx_rs::Dtype::Float32)?;
        values(&self.submissions.submit(logits, iter::empty())?)
    }

    /// Frees what sequences that ended have cached. Unknown ones are passed over.
    pub fn release(&mut self, seqs: &[SeqId]) {
        for seq in seqs {
            self.caches.release(*seq);
        }
    }

    /// Gives back memory that MLX keeps for its next arrays.
    pub fn shrink(&self) -> Result<(), EngineError> {
        Ok(memory::clear_cache()?)
    }

    /// Positions of `seq` that are cached.
    pub fn cached(&self, seq: SeqId) -> u32 {
        self.caches.length(seq)
    }

    /// Evaluations handed to the device so far: one for each step (on a GPU one for each piece of it),
    /// and one more where it sampled and went on, for the early tokens. Loading is not counted.
    pub const fn submissions(&self) -> u64 {
        self.submissions.count()
    }

    /// What MLX holds now, in this whole process.
    pub fn active_bytes(&self) -> Result<u64, EngineError> {
        active()
    }

    /// The most that MLX held at once, in this whole process.
    pub fn peak_bytes(&self) -> Result<u64, EngineError> {
        Ok(memory::peak_memory()? as u64)
    }

    /// Checks all rows before it touches a cache, then trims and extends each sequence's.
    fn admit(&mut self, rows: &[Row]) -> Result<Vec<Span>, EngineError> {
        let mut seen = HashSet::new();
        let mut spans = Vec::with_capacity(rows.len());
        size(positions(rows))?;
        for row in rows {
            let Row { seq, first, count, .. } = *row;
            let end = u64::from(first) + u64::from(count);
            if count == 0 {
                return Err(EngineError::EmptyRow { seq });
            }
            if end > u64::from(self.config.max_positions) {
                return Err(EngineError::BeyondContext {
                    seq,
                    end,
                    max: self.config.max_positions,
                });
            }
            if !seen.insert(seq) {
                return Err(EngineError::Twice { seq });
            }
            self.caches.check(row)?;
            spans.push(Span { seq, first: size(first.into())?, count: size(count.into())? });
        }
        for row in rows {
            self.caches.begin(row);
        }
        Ok(spans)
    }

    /// The logits of each row, lazily, in the compute type.
    fn head_logits(&self, hidden: Carried) -> Result<Array, EngineError> {
        let head = self.head.as_ref().ok_or(EngineError::NotThisShard("no head"))?;
        let rows = hidden.array(self.dtype)?;
        drop(hidden);
        head.forward(&rows, self.embedding.as_ref())
    }

    fn embed(&self, tokens: &Array) -> Result<Array, EngineError> {
        let embedding = self.embedding.as_ref().ok_or(EngineError::NotThisShard("no embedding"))?;
        embedding.forward(tokens)
    }

    /// The rows' input through the layers. A device that is `idle` starts on the first of them while
    /// the host still builds the others.
    fn run(&mut self, input: Array, spans: &[Span], idle: bool) -> Result<Array, EngineError> {
        let mut step = StepContext { spans, caches: &mut self.caches, layer: 0 };
        let mut x = input;
        let last = self.blocks.len().saturating_sub(1);
        for (layer, block) in self.blocks.iter().enumerate() {
            step.layer = layer;
            x = block.forward(&x, &mut step)?;
            if idle && self.in_pieces && layer % PIECE_LAYERS == PIECE_LAYERS - 1 && layer < last {
                // What the layers wrote to their caches is computed with it.
                self.submissions.submit(x.clone(), iter::empty())?;
            }
        }
        Ok(x)
    }

    /// Submits the step and waits for what leaves this rank.
    fn finish(&mut self, output: Array, rows: &[Row]) -> Result<Hidden, EngineError> {
        // The caches too, so that nothing lazy outlives the step.
        let output = self.submissions.submit(output, self.caches.updated(rows))?;
        if self.is_last {
            wanted_rows(&output, rows, self.dtype, self.width())
        } else {
            all_rows(&output, self.dtype, self.width())
        }
    }

    fn check_carried(&self, hidden: &Carried) -> Result<(), EngineError> {
        match hidden {
            Carried::Bytes(hidden) => self.check_hidden(hidden),
            Carried::Device(_) => same_count(WIDTH, self.width().into(), hidden.width().into()),
            Carried::Joined(parts) => parts.iter().try_for_each(|part| self.check_carried(part)),
        }
    }

    fn check_hidden(&self, hidden: &Hidden) -> Result<(), EngineError> {
        let width = u64::from(self.width());
        same_count(WIDTH, width, u64::from(hidden.width))?;
        let bytes = u64::from(hidden.tokens) * width * hidden.dtype.size_bytes() as u64;
        same_count("bytes of a hidden state", bytes, hidden.data.len() as u64)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("model_type", &self.config.model_type)
            .field("layers", &self.blocks.len())
            .field("dtype", &self.dtype)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Head {
    fn load(weights: &mut Weights<'_>, tied: bool) -> Result<Self, EngineError> {
        let norm = weights.rms_norm(NORM)?;
        let projection = if tied { None } else { Some(weights.linear(HEAD, false)?) };
        Ok(Self { norm, projection })
    }

    /// `[rows, hidden]` to logits `[rows, vocab]`.
    fn forward(&self, x: &Array, embedding: Option<&Embedding>) -> Result<Array, EngineError> {
        let x = self.norm.forward(x)?;
        match (&self.projection, embedding) {
            (Some(projection), _) => projection.forward(&x),
            (None, Some(embedding)) => embedding.as_head(&x),
            (None, None) => Err(EngineError::Internal("a tied head without an embedding")),
        }
    }
}

/// Whether this process computes on a GPU: which MLX library it was started with decides.
pub fn on_gpu() -> Result<bool, EngineError> {
    Ok(matches!(Device::try_default()?.get_type()?, DeviceType::Gpu))
}

/// Asks a Mac to keep so much of what this process computes on in memory: what a GPU reads must not be
/// paged out between two steps. Never more than a rank needs, since the rest of the machine lives of
/// what is left. Elsewhere there is nothing to ask.
pub fn wire(bytes: u64) {
    if cfg!(target_os = "macos")
        && let Err(error) = memory::set_wired_limit(usize::try_from(bytes).unwrap_or(usize::MAX))
    {
        // Before macOS 15, or above the GPU's limit: it works all the same, as far as memory allows.
        tracing::warn!(%error, bytes, "the wired limit cannot be set");
    }
}

/// What layer `layer` of the model keeps of a sequence.
fn layer_shape(config: &ModelConfig, layer: u32, dtype: Dtype) -> LayerShape {
    if config.delta_of(layer).is_some() {
        return LayerShape::Recurrent;
    }
    LayerShape::KeysValues(KeysValuesShape {
        kv_heads: config.kv_heads.cast_signed(),
        head_dim: config.head_dim.cast_signed(),
        dtype: mlx_dtype(dtype),
    })
}

fn device_name(on_gpu: bool) -> String {
    if !on_gpu {
        return format!("cpu ({})", blas_name());
    }
    ffi::gpu_name().map_or_else(|| "gpu".to_owned(), |name| format!("gpu ({name})"))
}

/// The log probabilities of each draw that wants them, lazily.
fn logprobs(
    logits: &Array,
    tokens: &Array,
    draws: &[Draw<'_>],
) -> Result<Vec<Option<Computed>>, EngineError> {
    let of_row = |row: i32, count| {
        let token = ffi::slice(tokens, &[row], &[row + 1])?;
        Computed::new(&sample::row_of(logits, row)?, &token, count)
    };
    (0..).zip(draws).map(|(row, draw)| draw.logprobs.map(|n| of_row(row, n)).transpose()).collect()
}

/// The ids that go on, of all that were drawn.
fn going_on(tokens: &Array, draws: &[Draw<'_>]) -> Result<Array, EngineError> {
    if draws.iter().all(|draw| draw.advance) {
        return Ok(tokens.clone());
    }
    let places: Vec<i32> =
        (0..).zip(draws).filter(|(_, draw)| draw.advance).map(|(place, _)| place).collect();
    let count = size(places.len() as u64)?;
    Ok(tokens.take_axis(Array::from_slice(&places, &[count]), 0)?)
}

fn positions(rows: &[Row]) -> u64 {
    rows.iter().map(|row| u64::from(row.count)).sum()
}

fn same_count(what: &'static str, expected: u64, got: u64) -> Result<(), EngineError> {
    if expected == got { Ok(()) } else { Err(EngineError::Count { what, expected, got }) }
}

fn active() -> Result<u64, EngineError> {
    Ok(memory::active_memory()? as u64)
}

/// Layers of a piece. A GPU that is given so few at once is never idle while the host builds the
/// next ones; each piece costs it a few microseconds.
const PIECE_LAYERS: usize = 2;
const WIDTH: &str = "width of a hidden state";
/// What MLX may keep of freed buffers for reuse; part of a node's reserve.
const CACHE_BYTES_MAX: usize = 256 << 20;
