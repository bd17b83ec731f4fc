//! What a chat template is given, in the form that templates are written for.

use serde_json::{Map, Value};

/// A conversation as the template sees it: JSON whose keys keep their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Objects with `role`, `content` (a text or a list of parts), and what else a message has: `tool_calls` whose `arguments` are objects, `tool_call_id`, `name`,
    /// `reasoning_content`.
    pub messages: Vec<Value>,
    /// The tools on offer, as `{"type": "function", "function": …}`.
    pub tools: Vec<Value>,
    /// More variables of the template's own, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// Whether a content is a list of parts.
    pub(super) fn has_parts(&self) -> bool {
        self.messages.iter().any(|message| message["content"].is_array())
    }

    /// The same with contents of several parts made one text, for a template that reads no parts.
    pub(super) fn with_plain_contents(&self) -> Self {
        let mut plain = self.clone();
        for message in &mut plain.messages {
            let joined = message["content"].as_array().map(|parts| {
                let texts: Vec<&str> =
                    parts.iter().filter_map(|part| part["text"].as_str()).collect();
                texts.join(PART_SEPARATOR)
            });
            if let Some(joined) = joined {
                message["content"] = joined.into();
            }
        }
        plain
    }
}

/// Parts are often a document and a question: glued together, their words would run into one.
const PART_SEPARATOR: &str = "\n";
