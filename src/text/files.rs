//! The files of a checkpoint that concern text, read and checked, not yet interpreted.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::TextError;

/// What the files say.
pub(super) struct Files {
    pub tokenizer: Vec<u8>,
    /// The chat template; none: the model was not made to chat.
    pub template: Option<Source>,
    /// A template of its own for conversations with tools.
    pub tool_template: Option<Source>,
    /// Special tokens by their role, such as `bos_token`.
    pub special: BTreeMap<&'static str, String>,
    /// Ids that end an answer, from every file that names some.
    pub eos: Vec<u32>,
}

/// A template's text and the file it stands in.
pub(super) struct Source {
    pub file: PathBuf,
    pub text: String,
}

impl Files {
    pub fn read(dir: &Path) -> Result<Self, TextError> {
        let file = dir.join(TOKENIZER);
        let tokenizer = bytes(&file)?.ok_or(TextError::Missing { file })?;
        let config = Json::read(dir.join("tokenizer_config.json"))?;
        let mut eos = Vec::new();
        for name in ["generation_config.json", "config.json"] {
            let json = Json::read(dir.join(name))?;
            eos.extend(json.ids("eos_token_id")?);
            eos.extend(json.nested("text_config").ids("eos_token_id")?);
        }
        let mut special = BTreeMap::new();
        for role in SPECIAL_ROLES {
            if let Some(token) = config.token(role)? {
                special.insert(*role, token);
            }
        }
        let (template, tool_template) = templates(dir, &config)?;
        Ok(Self { tokenizer, template, tool_template, special, eos })
    }

    pub fn special(&self, role: &str) -> Option<&str> {
        self.special.get(role).map(String::as_str)
    }
}

/// The template, and that for tools, as transformers finds them: those that stand in files of their
/// own count, else the tokenizer's config holds a text or a list of named ones.
fn templates(dir: &Path, config: &Json) -> Result<(Option<Source>, Option<Source>), TextError> {
    let default = file_template(dir.join("chat_template.jinja"))?;
    if default.is_some() {
        let named = dir.join("additional_chat_templates").join(format!("{FOR_TOOLS}.jinja"));
        return Ok((default, file_template(named)?));
    }
    let separate = Json::read(dir.join("chat_template.json"))?;
    for json in [config, &separate] {
        let source = |text: &str| Source { file: json.file.clone(), text: text.to_owned() };
        let named = |named: &[Value], name| {
            let template = named.iter().find(|template| template["name"] == name);
            template.and_then(|template| template["template"].as_str()).map(source)
        };
        let (default, for_tools) = match json.fields.get(CHAT_TEMPLATE) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => (Some(source(text)), None),
            Some(Value::Array(list)) => (named(list, "default"), named(list, FOR_TOOLS)),
            Some(_) => (None, None),
        };
        let expected = "a text, or a list with one named `default`";
        return match default {
            Some(default) => Ok((Some(default), for_tools)),
            None => Err(json.fault(CHAT_TEMPLATE, expected)),
        };
    }
    Ok((None, None))
}

fn file_template(file: PathBuf) -> Result<Option<Source>, TextError> {
    let Some(text) = bytes(&file)? else { return Ok(None) };
    match String::from_utf8(text) {
        Ok(text) => Ok(Some(Source { file, text })),
        Err(error) => Err(TextError::Damaged { file, reason: error.to_string() }),
    }
}

/// A file that holds a JSON object; one that is not there holds an empty one.
struct Json {
    file: PathBuf,
    fields: Map<String, Value>,
}

impl Json {
    fn read(file: PathBuf) -> Result<Self, TextError> {
        let Some(text) = bytes(&file)? else { return Ok(Self { file, fields: Map::new() }) };
        match serde_json::from_slice(&text) {
            Ok(fields) => Ok(Self { file, fields }),
            Err(error) => Err(TextError::Damaged { file, reason: error.to_string() }),
        }
    }

    /// The object at `field`, if it is one.
    fn nested(&self, field: &str) -> Self {
        let fields = self.fields.get(field).and_then(Value::as_object).cloned();
        Self { file: self.file.clone(), fields: fields.unwrap_or_default() }
    }

    /// One id or a list of them.
    fn ids(&self, field: &'static str) -> Result<Vec<u32>, TextError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match self.fields.get(field) {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(single) => id(single).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.fault(field, "a token id or a list of them"))
    }

    /// A token, as text or as an object that holds its text.
    fn token(&self, field: &'static str) -> Result<Option<String>, TextError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(token)) => Ok(Some(token.clone())),
            Some(object) => match object["content"].as_str() {
                Some(token) => Ok(Some(token.to_owned())),
                None => Err(self.fault(field, "a text, or an object with `content`")),
            },
        }
    }

    fn fault(&self, field: &'static str, expected: &'static str) -> TextError {
        let got = self.fields.get(field).map(ToString::to_string).unwrap_or_default();
        let got = got.chars().take(SHOWN_CHARS).collect();
        TextError::Field { file: self.file.clone(), field, expected, got }
    }
}

/// A file's bytes; none if there is no such file.
fn bytes(file: &Path) -> Result<Option<Vec<u8>>, TextError> {
    let unreadable = |source| TextError::Unreadable { file: file.to_owned(), source };
    let size = match fs::metadata(file) {
        // Reading a pipe or a device may never end.
        Ok(metadata) if !metadata.is_file() => {
            return Err(unreadable(io::Error::other("it is no ordinary file")));
        }
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if size > FILE_BYTES_MAX {
        let max = FILE_BYTES_MAX;
        return Err(TextError::TooLarge { file: file.to_owned(), bytes: size, max });
    }
    fs::read(file).map(Some).map_err(unreadable)
}

pub(super) const TOKENIZER: &str = "tokenizer.json";
const CHAT_TEMPLATE: &str = "chat_template";
/// What a template is called that counts where tools are on offer.
const FOR_TOOLS: &str = "tool_use";
/// Roles that templates may ask for.
const SPECIAL_ROLES: &[&str] =
    &["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];
/// The largest known tokenizer.json has about 35 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;
const SHOWN_CHARS: usize = 80;
