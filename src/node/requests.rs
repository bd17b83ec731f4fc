//! Requests of one served model: text in, sequences to rank 0, token events back, text out. The
//! node keeps text; ranks know only tokens. It owns the bound on waiting requests.

use std::collections::HashMap;
use std::sync::Arc;

use daisy_proto::local::{Admit, FinishReason, Timings, ToRank};
use daisy_proto::{Logprobs, Sampling, SeqId};
use tokio::sync::{mpsc, oneshot, watch};

use super::answer::{Answer, likelihood};
use super::handle::{
    ChatRequest, Delta, EVENTS_MAX, Generation, GenerationEvent, Serving, Submission, SubmitError,
};
use crate::text::{OutputParser, TextError, TextModel, Tools};

/// What reaches the requests of a pipeline.
#[derive(Debug)]
pub(crate) enum Input {
    Token {
        seq: SeqId,
        token: u32,
        logprobs: Option<Logprobs>,
    },
    Finished {
        seq: SeqId,
        reason: FinishReason,
        timings: Timings,
    },
    /// The pipeline is gone: every request ends with this reason.
    Failed(String),
    /// Answer when no request is left.
    WhenIdle(oneshot::Sender<()>),
}

/// All requests of one served model. One task owns it.
#[derive(Debug)]
pub(crate) struct Requests {
    text: Arc<TextModel>,
    context: u32,
    rank0: mpsc::Sender<ToRank>,
    state: watch::Receiver<Serving>,
    active: HashMap<SeqId, Active>,
    /// Requests whose prompt is being tokenised.
    encoding: usize,
    next_seq: u64,
    idle: Vec<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Active {
    events: mpsc::Sender<GenerationEvent>,
    answer: Answer,
    /// What a slow reader has not taken yet; bounded by the context.
    backlog: Delta,
    completion_tokens: u32,
}

type Encoded = (Submission, Result<Prompt, TextError>);

/// A prompt, and what takes the answer to it apart.
struct Prompt {
    tokens: Vec<u32>,
    output: OutputParser,
}

impl Requests {
    pub(crate) fn new(
        text: Arc<TextModel>,
        context: u32,
        rank0: mpsc::Sender<ToRank>,
        state: watch::Receiver<Serving>,
    ) -> Self {
        Self {
            text,
            context,
            rank0,
            state,
            active: HashMap::new(),
            encoding: 0,
            next_seq: FIRST_SEQ,
            idle: Vec::new(),
        }
    }

    /// Runs until both queues are closed.
    pub(crate) async fn run(
        mut self,
        mut submissions: mpsc::Receiver<Submission>,
        mut inputs: mpsc::Receiver<Input>,
    ) {
        let (encoded_in, mut encoded) = mpsc::channel::<Encoded>(QUEUE_MAX);
        let (left_in, mut left) = mpsc::channel::<SeqId>(QUEUE_MAX);
        loop {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.input(input).await,
                    None => return,
                },
                Some(submission) = submissions.recv() => self.submit(submission, &encoded_in),
                Some((submission, prompt)) = encoded.recv() => {
                    self.encoding -= 1;
                    self.admit(submission, prompt, &left_in).await;
                }
                Some(seq) = left.recv() => {
                    if self.active.contains_key(&seq) {
                        let _ = self.rank0.send(ToRank::Cancel { seq }).await;
                    }
                }
            }
            if self.active.is_empty() && self.encoding == 0 {
                for idle in self.idle.drain(..) {
                    let _ = idle.send(());
                }
            }
        }
    }

    /// Checks that the request may wait, then tokenises it off this task.
    fn submit(&mut self, submission: Submission, encoded: &mpsc::Sender<Encoded>) {
        if let Err(error) = self.may_enter() {
            let _ = submission.reply.send(Err(error));
            return;
        }
        self.encoding += 1;
        let (text, encoded) = (Arc::clone(&self.text), encoded.clone());
        let context = self.context;
        tokio::task::spawn_blocking(move || {
            let prompt = encode(&text, &submission.request, context);
            // The channel holds as many as may enter.
            let _ = encoded.blocking_send((submission, prompt));
        });
    }

    fn may_enter(&self) -> Result<(), SubmitError> {
        self.state.borrow().readiness.check()?;
        let waiting = self.active.len() + self.encoding;
        if waiting >= QUEUE_MAX {
            return Err(SubmitError::QueueFull { waiting, retry_after_s: RETRY_AFTER_S });
        }
        Ok(())
    }

    async fn admit(
        &mut self,
        submission: Submission,
        prompt: Result<Prompt, TextError>,
        left: &mpsc::Sender<SeqId>,
    ) {
        let Submission { request, reply } = submission;
        let admitted = self.admission(&request, prompt);
        let (admit, prompt_tokens, output) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let seq = admit.seq;
        let seed = admit.sampling.seed;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        if reply.send(Ok(Generation { prompt_tokens, seed, events: receiver })).is_err() {
            return; // The client left while its prompt was tokenised.
        }
        let (watched, left) = (events.clone(), left.clone());
        tokio::spawn(async move {
            watched.closed().await;
            let _ = left.send(seq).await;
        });
        tracing::info!(id = request.id, %seq, prompt_tokens, max_tokens = admit.max_tokens, "request admitted");
        let active = Active {
            events,
            answer: Answer::new(&self.text, &request.stop, output),
            backlog: Delta::default(),
            completion_tokens: 0,
        };
        self.active.insert(seq, active);
        if self.rank0.send(ToRank::Admit(admit)).await.is_err() {
            self.fail_all("rank 0 is gone");
        }
    }

    fn admission(
        &mut self,
        request: &ChatRequest,
        prompt: Result<Prompt, TextError>,
    ) -> Result<(Admit, u32, OutputParser), SubmitError> {
        self.may_enter()?;
        let invalid = |message| SubmitError::Invalid { param: "messages", message };
        let Prompt { tokens, output } = prompt.map_err(|error| invalid(error.to_string()))?;
        let prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if prompt_tokens == 0 {
            return Err(invalid("the messages give an empty prompt".to_owned()));
        }
        if prompt_tokens >= self.context {
            return Err(invalid(format!(
                "the prompt has {prompt_tokens} tokens and leaves no room for an answer: the \
                 context is {} tokens",
                self.context
            )));
        }
        let vocab = self.text.vocab_size();
        if let Some((token, _)) = request.bias.iter().find(|(token, _)| *token as usize >= vocab) {
            let message = format!("token {token} is not one of the {vocab} that the model has");
            return Err(SubmitError::Invalid { param: "logit_bias", message });
        }
        let room = self.context - prompt_tokens;
        let seed = request.seed.map_or_else(random, Ok)?;
        let seq = SeqId(self.next_seq);
        self.next_seq += 1;
        let admit = Admit {
            seq,
            prompt: tokens,
            max_tokens: request.max_tokens.map_or(room, |max| max.min(room)),
            eos: self.text.eos().to_vec(),
            sampling: Sampling { seed, ..request.sampling },
            bias: request.bias.clone(),
            logprobs: request.logprobs,
        };
        Ok((admit, prompt_tokens, output))
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Token { seq, token, logprobs } => {
                if self.token(seq, token, logprobs) {
                    let _ = self.rank0.send(ToRank::Cancel { seq }).await;
                }
            }
            Input::Finished { seq, reason, timings } => {
                if let Some(active) = self.active.remove(&seq) {
                    tracing::info!(
                        %seq,
                        ?reason,
                        completion_tokens = active.completion_tokens,
                        queue_ms = timings.queue_us / 1000,
                        prefill_ms = timings.prefill_us / 1000,
                        decode_ms = timings.decode_us / 1000,
                        "request finished"
                    );
                    active.finish(reason, timings);
                }
            }
            Input::Failed(reason) => self.fail_all(&reason),
            Input::WhenIdle(idle) => self.idle.push(idle),
        }
    }

    /// Says whether the token completed a stop string.
    fn token(&mut self, seq: SeqId, token: u32, logprobs: Option<Logprobs>) -> bool {
        let Some(active) = self.active.get_mut(&seq) else { return false };
        // What rank 0 drew before it heard of the end is no part of the answer.
        if active.answer.is_stopped() {
            return false;
        }
        active.completion_tokens += 1;
        // An end token is counted, never shown.
        if self.text.eos().contains(&token) {
            return false;
        }
        let likelihood = logprobs.map(|logprobs| likelihood(&self.text, token, logprobs));
        let delta = active.answer.push(&self.text, token, likelihood);
        active.emit(delta);
        active.answer.is_stopped()
    }

    fn fail_all(&mut self, reason: &str) {
        for (_, active) in self.active.drain() {
            if active.answer.is_stopped() {
                // It is complete: only its figures are lost.
                active.finish(FinishReason::Stop, Timings::default());
            } else {
                active.end(GenerationEvent::Failed(reason.to_owned()));
            }
        }
    }
}

impl Active {
    /// Hands text on without waiting: what a slow reader does not take is kept and goes with the
    /// next piece.
    fn emit(&mut self, delta: Delta) {
        self.backlog.append(delta);
        if self.backlog.is_empty() {
            return;
        }
        if let Ok(permit) = self.events.try_reserve() {
            permit.send(GenerationEvent::Delta(std::mem::take(&mut self.backlog)));
        }
    }

    fn finish(mut self, reason: FinishReason, timings: Timings) {
        self.backlog.append(self.answer.finish());
        // It was cancelled because it was complete.
        let reason = if self.answer.is_stopped() { FinishReason::Stop } else { reason };
        let completion_tokens = self.completion_tokens;
        self.end(GenerationEvent::Finished { reason, completion_tokens, timings });
    }

    /// The last words may wait for a slow reader, but nothing else waits for them.
    fn end(self, last: GenerationEvent) {
        tokio::spawn(async move {
            if !self.backlog.is_empty()
                && self.events.send(GenerationEvent::Delta(self.backlog)).await.is_err()
            {
                return;
            }
            let _ = self.events.send(last).await;
        });
    }
}

fn encode(text: &TextModel, request: &ChatRequest, context: u32) -> Result<Prompt, TextError> {
    let rendered = text.render(&request.conversation)?;
    let tokens = text.encode_within(&rendered, context)?;
    let tools = Tools::new(&request.conversation.tools);
    Ok(Prompt { tokens, output: text.output(&rendered, tools, request.parallel_calls) })
}

fn random() -> Result<u64, SubmitError> {
    super::random_u64().map_err(|error| SubmitError::NotReady(error.to_string()))
}

/// Requests that wait or run at once; beyond them a client gets 429.
pub(crate) const QUEUE_MAX: usize = 64;
const RETRY_AFTER_S: u32 = 5;
/// Sequence 0 is the warm-up's.
const FIRST_SEQ: u64 = 1;
