//! Which marks a model puts into its answers, by what its template and its vocabulary hold.

/// What of a model's output is no content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Markup {
    /// How it writes tool calls; none: it was not taught to, or in a form that is not known.
    pub(super) calls: Option<CallFormat>,
    /// Whether it thinks between `<think>` and `</think>`.
    pub(super) reasoning: bool,
    /// Markers that are tokens.
    tokens: Vec<(u32, &'static str)>,
}

/// How a family writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Tagged,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder,
    /// Qwen 3.5 and later.
    Functions,
    /// `[TOOL_CALLS]` and a list of `{"name": …, "arguments": {…}}`, or `NAME[ARGS]{…}`: Mistral.
    Mistral,
    /// `{"name": …, "parameters": {…}}` as the whole answer, or behind `<|python_tag|>`: Llama 3.
    Llama,
}

impl Markup {
    /// By the text of the chat template, and by what the vocabulary has as one token.
    pub fn of(template: &str, token: impl Fn(&str) -> Option<u32>) -> Self {
        let has = |marker| template.contains(marker);
        let calls = if has(TOOL_CALL) && has("<function=") {
            Some(CallFormat::Functions)
        } else if has(TOOL_CALL) && !has("<arg_key>") {
            Some(CallFormat::Tagged)
        } else if has(TOOL_CALLS) {
            Some(CallFormat::Mistral)
        } else if has(PYTHON_TAG) || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Some(CallFormat::Llama)
        } else {
            None
        };
        let reasoning = has(END_THINK);
        let thinking = [THINK, END_THINK].into_iter().filter(|_| reasoning);
        let calling = calls.into_iter().flat_map(CallFormat::markers).copied();
        let tokens =
            thinking.chain(calling).filter_map(|marker| Some((token(marker)?, marker))).collect();
        Self { calls, reasoning, tokens }
    }

    /// The marker that a token is.
    pub fn marker(&self, token: u32) -> Option<&'static str> {
        self.tokens.iter().find(|(id, _)| *id == token).map(|(_, marker)| *marker)
    }

    pub(super) fn is_token(&self, marker: &str) -> bool {
        self.tokens.iter().any(|(_, name)| *name == marker)
    }
}

impl CallFormat {
    /// What opens a call.
    pub(super) const fn opening(self) -> &'static str {
        match self {
            Self::Tagged | Self::Functions => TOOL_CALL,
            Self::Mistral => TOOL_CALLS,
            Self::Llama => PYTHON_TAG,
        }
    }

    /// What has a meaning in a call and may be a token that is no text.
    pub(super) const fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Tagged | Self::Functions => &[TOOL_CALL, END_TOOL_CALL],
            Self::Mistral => &[TOOL_CALLS, CALL_ID, ARGS],
            Self::Llama => &[PYTHON_TAG],
        }
    }

    /// Whether an answer may be a call without any marker.
    pub(super) const fn may_be_bare(self) -> bool {
        matches!(self, Self::Llama)
    }

    /// The characters that a call ends with.
    pub(super) const fn ends(self) -> &'static [char] {
        match self {
            Self::Tagged | Self::Functions => &['>'],
            Self::Mistral | Self::Llama => &['}', ']'],
        }
    }
}

pub(super) const THINK: &str = "<think>";
pub(super) const END_THINK: &str = "</think>";
pub(super) const TOOL_CALL: &str = "<tool_call>";
pub(super) const END_TOOL_CALL: &str = "</tool_call>";
pub(super) const TOOL_CALLS: &str = "[TOOL_CALLS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
