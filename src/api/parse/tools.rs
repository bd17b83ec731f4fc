//! The tools on offer, how they may be called, and the template's own variables.

use serde_json::{Map, Value};

use super::ParseError;
use super::field::{Fields, given};

/// The tools that the model may call: none if `tool_choice` says so.
pub fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ParseError> {
    let tools = match fields.optional("tools") {
        None => Vec::new(),
        Some(Value::Array(tools)) if tools.len() <= TOOLS_MAX => {
            let tools = tools.iter().enumerate().map(|(at, value)| tool(at, value));
            tools.collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(fields.wrong(
                "tools",
                &format!("a list of at most {TOOLS_MAX} tools"),
                other,
            ));
        }
    };
    // To force a call takes a sampler that is bound to a grammar.
    match fields.optional("tool_choice") {
        Some(choice) if choice == "none" => Ok(Vec::new()),
        Some(choice) if choice != "auto" => {
            let (param, harmless) = ("tool_choice".to_owned(), "\"auto\" or \"none\"");
            Err(ParseError::Unsupported { param, harmless, given: given(choice) })
        }
        _ => Ok(tools),
    }
}

/// A tool as the client wrote it: templates write it as a whole.
fn tool(at: usize, value: &Value) -> Result<Value, ParseError> {
    let path = format!("tools[{at}]");
    let wrong = |param: String, wanted: &str, value: &Value| {
        let (wanted, given) = (wanted.to_owned(), given(value));
        Err(ParseError::Wrong { param, wanted, given })
    };
    let Value::Object(object) = value else {
        return wrong(path, "an object with type and function", value);
    };
    let fields = Fields::inside(&path, object);
    let kind = fields.required("type", "\"function\"")?;
    if kind != "function" {
        return Err(fields.wrong("type", "\"function\"", kind));
    }
    let function = fields.required("function", "an object with name and parameters")?;
    let Value::Object(inner) = function else {
        return Err(fields.wrong("function", "an object with name and parameters", function));
    };
    let inner = Fields::inside(&fields.path("function"), inner);
    let name = inner.required("name", NAME)?;
    let is_name = |name: &str| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte))
    };
    if !name.as_str().is_some_and(is_name) {
        return Err(inner.wrong("name", NAME, name));
    }
    inner.string("description")?;
    if let Some(parameters) = inner.optional("parameters").filter(|schema| !schema.is_object()) {
        return Err(inner.wrong("parameters", "an object, a JSON schema", parameters));
    }
    if inner.boolean("strict")? == Some(true) {
        let (param, given) = (inner.path("strict"), "true".to_owned());
        return Err(ParseError::Unsupported { param, harmless: "false", given });
    }
    Ok(value.clone())
}

/// Variables for the chat template, such as `enable_thinking`.
pub fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ParseError> {
    match fields.optional("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(value @ Value::Object(variables)) => {
            match RESERVED.iter().find(|name| variables.contains_key(**name)) {
                Some(name) => {
                    let wanted = format!("without {name}, which is not the client's to set");
                    Err(fields.wrong("chat_template_kwargs", &wanted, value))
                }
                None => Ok(variables.clone()),
            }
        }
        Some(other) => Err(fields.wrong("chat_template_kwargs", "an object", other)),
    }
}

/// As many as OpenAI takes.
const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 128;
const NAME: &str = "1 to 128 letters, digits and _-.:/";
/// What a template gets from the request's other fields or from the server.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "strftime_now",
    "raise_exception",
    "tokenize",
    "chat_template",
];
