//! Text of a model: its chat template, its tokenizer, and the way back from tokens to text.
//!
//! Text exists only in the node; a rank sees token ids. This module knows the files of a checkpoint
//! directory that concern text, and neither weights nor HTTP. What a conversation means is the
//! template's business: messages go in as they are, and what the template refuses is an error.
//!
//! Start at [`TextModel`]; `template` renders, `detokenizer` turns tokens back into text, `stop` looks
//! for stop strings in it, `output` takes an answer apart into reasoning, content and tool calls.

mod clock;
mod conversation;
mod detokenizer;
mod files;
mod output;
mod stop;
mod template;

use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokenizers::Tokenizer;

pub use conversation::Conversation;
pub use detokenizer::Detokenizer;
use detokenizer::Vocabulary;
use files::{Files, Source};
use output::Markup;
pub use output::{OutputParser, Parts, ToolCall, Tools};
pub use stop::StopMatcher;
use template::ChatTemplate;

/// What a checkpoint says about text. Shared between tasks; nothing in it changes.
pub struct TextModel {
    vocabulary: Arc<Vocabulary>,
    templates: Option<Templates>,
    markup: Markup,
    eos: Vec<u32>,
    vocab_size: usize,
    longest_token_bytes: usize,
}

/// A model's chat templates.
struct Templates {
    default: ChatTemplate,
    for_tools: Option<ChatTemplate>,
}

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("{} is missing: download or copy the checkpoint again", file.display())]
    Missing { file: PathBuf },
    #[error("{} cannot be read: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("{} has {bytes} bytes; at most {max} are read", file.display())]
    TooLarge { file: PathBuf, bytes: u64, max: u64 },
    #[error("{} is damaged or of an unknown form: {reason}", file.display())]
    Damaged { file: PathBuf, reason: String },
    #[error("{}: `{field}` must be {expected}, got {got}", file.display())]
    Field { file: PathBuf, field: &'static str, expected: &'static str, got: String },
    #[error("{}: tokens cannot be turned into text piece by piece with {decoder}", file.display())]
    Decoder { file: PathBuf, decoder: String },
    #[error("the chat template in {} cannot be read: {reason}", file.display())]
    Template { file: PathBuf, reason: String },
    #[error("this model has no chat template: use one that was trained to chat")]
    NoTemplate,
    /// The template's own words, by its `raise_exception`.
    #[error("{0}")]
    Refused(String),
    #[error("the chat template failed: {0}")]
    Render(String),
    #[error("the text cannot be split into tokens: {0}")]
    Encode(String),
    #[error("the prompt has {bytes} bytes, far more than the context of {context} tokens can hold")]
    TooLong { bytes: usize, context: u32 },
}

impl TextModel {
    /// Reads what the checkpoint in `dir` says about text.
    pub fn open(dir: &Path) -> Result<Self, TextError> {
        let files = Files::read(dir)?;
        let damaged = |reason| TextError::Damaged { file: dir.join(files::TOKENIZER), reason };
        let mut tokenizer =
            caught(|| Tokenizer::from_bytes(&files.tokenizer).map_err(|error| error.to_string()))
                .map_err(damaged)?;
        // Some checkpoints carry the settings of their training batches.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| TextError::Encode(error.to_string()))?;

        let vocabulary = tokenizer.get_vocab(true);
        let vocab_size = vocabulary.values().max().map_or(0, |highest| *highest as usize + 1);
        // As it is written there, a token is never shorter than the text that it stands for.
        let longest_token_bytes = vocabulary.keys().map(String::len).max().unwrap_or(1);
        let mut eos = files.eos.clone();
        eos.extend(files.special("eos_token").and_then(|token| tokenizer.token_to_id(token)));
        eos.sort_unstable();
        eos.dedup();
        let compiled = |source: &Source| {
            ChatTemplate::parse(&source.text, &files.special)
                .map_err(|reason| TextError::Template { file: source.file.clone(), reason })
        };
        let templates = match &files.template {
            Some(default) => Some(Templates {
                default: compiled(default)?,
                for_tools: files.tool_template.as_ref().map(compiled).transpose()?,
            }),
            None => None,
        };
        let sources = files.template.iter().chain(&files.tool_template);
        let sources: String = sources.map(|source| source.text.as_str()).collect();
        let markup = Markup::of(&sources, |marker| tokenizer.token_to_id(marker));
        let vocabulary = Vocabulary::new(tokenizer)
            .map_err(|decoder| TextError::Decoder { file: dir.join(files::TOKENIZER), decoder })?;
        Ok(Self {
            vocabulary: Arc::new(vocabulary),
            templates,
            markup,
            eos,
            vocab_size,
            longest_token_bytes,
        })
    }

    /// Ids that end an answer, sorted; empty if no file names one.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// One above the highest token id. A model's matrices may have more rows.
    pub const fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The prompt for a conversation, up to where the model's answer begins.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TextError> {
        self.render_at(conversation, SystemTime::now())
    }

    /// [`Self::render`] at a given time, which templates may write into the prompt (as UTC).
    pub fn render_at(
        &self,
        conversation: &Conversation,
        now: SystemTime,
    ) -> Result<String, TextError> {
        let templates = self.templates.as_ref().ok_or(TextError::NoTemplate)?;
        let template = templates.for_tools(!conversation.tools.is_empty());
        if template.reads_parts() || !conversation.has_parts() {
            template.render(conversation, now)
        } else {
            template.render(&conversation.with_plain_contents(), now)
        }
    }

    /// Token ids of a rendered prompt. The template has written every special token already, so
    /// none is added.
    pub fn encode(&self, rendered: &str) -> Result<Vec<u32>, TextError> {
        self.vocabulary.encode(rendered)
    }

    /// The bytes of text that a token stands for, perhaps half a character; none for a special token.
    pub fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        self.vocabulary.bytes(token)
    }

    /// What the vocabulary calls a token: special ones, as `<|im_end|>`, have nothing else.
    pub fn token_name(&self, token: u32) -> Option<String> {
        self.vocabulary.name(token)
    }

    /// [`Self::encode`] for a prompt that must fit `context` tokens: what cannot is refused before the
    /// work, which takes a hundred times the memory of the text.
    pub fn encode_within(&self, rendered: &str, context: u32) -> Result<Vec<u32>, TextError> {
        if rendered.len() / self.longest_token_bytes > context as usize {
            return Err(TextError::TooLong { bytes: rendered.len(), context });
        }
        self.encode(rendered)
    }

    /// What takes the answer to `rendered` apart, which has at most one call unless `parallel`.
    pub fn output(&self, rendered: &str, tools: Tools, parallel: bool) -> OutputParser {
        OutputParser::new(self.markup.clone(), tools, parallel, output::opens_reasoning(rendered))
    }

    /// The marker that a token is, by which an answer is taken apart.
    pub fn marker(&self, token: u32) -> Option<&'static str> {
        self.markup.marker(token)
    }

    /// A fresh detokenizer for one answer.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocabulary))
    }
}

impl Templates {
    fn for_tools(&self, has_tools: bool) -> &ChatTemplate {
        self.for_tools.as_ref().filter(|_| has_tools).unwrap_or(&self.default)
    }
}

/// The tokenizer library panics on some damaged files, and a node outlives any file.
fn caught<T>(action: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What a panic may leave half done is dropped, or only read by the library.
    let ended = panic::catch_unwind(AssertUnwindSafe(action));
    ended.unwrap_or_else(|_| Err("the tokenizer library panicked on it".to_owned()))
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel")
            .field("vocab_size", &self.vocab_size)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
