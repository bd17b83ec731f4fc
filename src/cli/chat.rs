//! `daisy chat`: a conversation in the terminal with any OpenAI-style endpoint.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::mpsc;

use super::cluster::runtime;
use super::{Failure, home, render};
use crate::api::client::{ChatMessage, Client, ClientError, Counted, Options, Said};

#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// The endpoint, up to /v1
    #[arg(long, default_value = "http://127.0.0.1:8100/v1", value_name = "URL")]
    url: String,
    /// The model, where the endpoint serves several
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// New tokens per answer at most
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 always takes the likeliest token
    #[arg(long)]
    temperature: Option<f32>,
    /// For endpoints that want one
    #[arg(long, env = "DAISY_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
}

/// What `/stats` shows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) answers: u32,
    pub(crate) last: Answered,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

/// One answer as this terminal saw it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answered {
    pub(crate) counted: Counted,
    /// Until the first piece of text.
    pub(crate) ttft: Duration,
    /// From the first piece of text to the last.
    pub(crate) decode: Duration,
}

impl Answered {
    /// The first token is the prefill's; the rest came in the decode time.
    #[expect(clippy::cast_precision_loss, reason = "a display of one decimal")]
    pub(crate) fn tokens_per_second(&self) -> f64 {
        let seconds = self.decode.as_secs_f64();
        let tokens = self.counted.completion_tokens.saturating_sub(1) as f64;
        if seconds > 0.0 { tokens / seconds } else { 0.0 }
    }
}

impl Chat {
    pub(crate) fn run(self, home_flag: Option<PathBuf>) -> Result<(), Failure> {
        let client = Client::new(&self.url, self.api_key.clone());
        let models = client.models().map_err(anyhow::Error::from)?;
        render::chat_begins(&models);
        let history = home(home_flag)?.join("chat_history");
        let mut editor = editor(&history)?;
        let runtime = runtime()?;
        let mut talk = Talk { messages: self.opening(), stats: Stats::default() };
        let outcome = loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => break Ok(()),
                Err(error) => break Err(anyhow::Error::from(error).into()),
            };
            let line = line.trim();
            match line {
                "" => {}
                "/quit" | "/exit" => break Ok(()),
                "/stats" => render::chat_stats(&talk.stats),
                "/reset" => {
                    talk.messages = self.opening();
                    render::chat_reset();
                }
                _ if line.starts_with('/') => render::chat_help(),
                _ => {
                    // A history that cannot be kept does not keep anyone from asking.
                    let _ = editor.add_history_entry(line);
                    runtime.block_on(talk.ask(&client, &self.options(), line));
                }
            }
        };
        let _ = editor.save_history(&history);
        runtime.shutdown_background();
        outcome
    }

    fn opening(&self) -> Vec<ChatMessage> {
        self.system.iter().map(|text| message("system", text)).collect()
    }

    fn options(&self) -> Options {
        Options {
            model: self.model.clone(),
            max_tokens: self.max_tokens,
            temperature: self.temperature,
        }
    }
}

struct Talk {
    messages: Vec<ChatMessage>,
    stats: Stats,
}

impl Talk {
    /// Asks, shows the answer as it comes, and keeps both; Ctrl+C ends the answer, not the talk.
    async fn ask(&mut self, client: &Client, options: &Options, question: &str) {
        self.messages.push(message("user", question));
        let (pieces_in, mut pieces) = mpsc::channel::<Said>(PIECES_MAX);
        let (client, options, messages) = (client.clone(), options.clone(), self.messages.clone());
        let began = Instant::now();
        let asked = tokio::task::spawn_blocking(move || {
            client.chat(&messages, &options, &mut |said| match pieces_in.blocking_send(said) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            })
        });
        let mut answer = String::new();
        let mut is_thinking = false;
        let (mut first, mut last) = (None, began);
        loop {
            tokio::select! {
                piece = pieces.recv() => match piece {
                    Some(piece) => {
                        last = Instant::now();
                        first.get_or_insert(last);
                        match piece {
                            Said::Thought(thought) => {
                                is_thinking = true;
                                render::chat_thought(&thought);
                            }
                            Said::Text(text) => {
                                if std::mem::take(&mut is_thinking) {
                                    render::chat_thought_ends();
                                }
                                render::chat_piece(&text);
                                answer.push_str(&text);
                            }
                        }
                    }
                    None => break,
                },
                _ = tokio::signal::ctrl_c() => {
                    render::chat_stopped();
                    break;
                }
            }
        }
        // The thread sees the closed channel at its next piece and hangs up.
        drop(pieces);
        render::chat_answer_ends();
        let first = first.unwrap_or(last);
        let timed = Answered { ttft: first - began, decode: last - first, ..Answered::default() };
        self.keep(&answer, timed, asked.await.context("the answer's task"));
    }

    fn keep(
        &mut self,
        answer: &str,
        timed: Answered,
        outcome: anyhow::Result<Result<Counted, ClientError>>,
    ) {
        match outcome.and_then(|outcome| Ok(outcome?)) {
            Ok(counted) => {
                self.stats.answers += 1;
                self.stats.last = Answered { counted, ..timed };
                self.stats.prompt_tokens += counted.prompt_tokens;
                self.stats.completion_tokens += counted.completion_tokens;
            }
            Err(error) => render::failure(&Failure::Other(error)),
        }
        if answer.is_empty() {
            // Not answered: the next try does not drag the question along.
            self.messages.pop();
        } else {
            self.messages.push(message("assistant", answer));
        }
    }
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: content.to_owned() }
}

fn editor(history: &std::path::Path) -> Result<Editor<(), FileHistory>, Failure> {
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)
        .context("cannot set up the line editor")?
        .build();
    let past = FileHistory::with_config(&config);
    let mut editor = Editor::with_history(config, past).context("cannot set up the line editor")?;
    // The first time there is none.
    let _ = editor.load_history(history);
    Ok(editor)
}

/// Pieces that a slow terminal may lag behind.
const PIECES_MAX: usize = 256;
const HISTORY_MAX: usize = 1000;
