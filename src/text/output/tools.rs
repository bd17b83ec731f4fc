//! The tools on offer, and calls of them.

use serde_json::Value;

/// A call that a model made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// The tools of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    tools: Vec<Value>,
}

impl Tools {
    /// Each is `{"type": "function", "function": {"name": …, "parameters": schema}}`.
    pub fn new(tools: &[Value]) -> Self {
        Self { tools: tools.iter().map(|tool| tool["function"].clone()).collect() }
    }

    pub const fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool["name"] == name)
    }

    /// What a tool's schema says of one parameter.
    pub fn parameter(&self, tool: &str, parameter: &str) -> Option<&Value> {
        let tool = self.tools.iter().find(|known| known["name"] == tool)?;
        tool.get("parameters")?.get("properties")?.get(parameter)
    }
}
