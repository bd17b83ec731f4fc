use super::*;

/// Writes GGUF files for tests.
pub(crate) struct Builder {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Builder {
    pub fn new() -> Self {
        Self { metadata: Vec::new(), tensors: Vec::new() }
    }

    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        for (key, _) in self.metadata.iter_mut().filter(|(key, _)| key == from) {
            to.clone_into(key);
        }
    }

    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    pub fn tensor(
        &mut self,
        name: &str,
        sizes: &[u64],
        kind: TensorKind,
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.tensors.retain(|(known, ..)| known != name);
        self.tensors.push((name.to_owned(), sizes.to_vec(), kind.0, bytes));
        self
    }

    pub fn without(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|(known, ..)| known != name);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            out.extend(kind(value).to_le_bytes());
            write(&mut out, value);
        }
        let mut data = Vec::new();
        for (name, sizes, kind, bytes) in &self.tensors {
            text(&mut out, name);
            out.extend(u32::try_from(sizes.len()).expect("few").to_le_bytes());
            out.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}

fn kind(value: &Value) -> u32 {
    match value {
        Value::Unsigned(_) => 10,
        Value::Signed(_) => 11,
        Value::F32(_) => 6,
        Value::F64(_) => 12,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::List(_) => 9,
    }
}

fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Unsigned(number) => out.extend(number.to_le_bytes()),
        Value::Signed(number) => out.extend(number.to_le_bytes()),
        Value::F32(number) => out.extend(number.to_le_bytes()),
        Value::F64(number) => out.extend(number.to_le_bytes()),
        Value::Bool(truth) => out.push(u8::from(*truth)),
        Value::Text(words) => text(out, words),
        Value::List(list) => {
            out.extend(list.first().map_or(8, kind).to_le_bytes());
            out.extend((list.len() as u64).to_le_bytes());
            for item in list {
                write(out, item);
            }
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn read(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::read(bytes, bytes.len() as u64)
}

fn sample() -> Builder {
    let mut file = Builder::new();
    file.set("a.text", Value::Text("größer".to_owned()))
        .set("a.list", Value::List(vec![Value::Text("x".to_owned()), Value::Text(String::new())]))
        .set(
            "a.nested",
            Value::List(vec![
                Value::List(vec![Value::Bool(true)]),
                Value::List(vec![Value::Bool(false)]),
            ]),
        )
        .set("a.numbers", Value::List(vec![Value::Signed(-3), Value::Signed(4)]))
        .set("a.f32", Value::F32(1e-5))
        .set("a.f64", Value::F64(0.25))
        .set("a.unsigned", Value::Unsigned(u64::MAX))
        .tensor("one", &[3], TensorKind::F32, vec![7; 12])
        .tensor("two", &[32, 2], TensorKind::Q4_1, vec![9; 40]);
    file
}

#[test]
fn every_kind_of_value_is_read() {
    let (file, bytes) = (sample(), sample().bytes());
    let gguf = read(&bytes).expect("valid");
    assert_eq!(gguf.version, 3);
    for (key, value) in &file.metadata {
        assert_eq!(gguf.metadata.get(key), Some(value), "{key}");
    }
    let [one, two] = gguf.tensors.as_slice() else { panic!("{:?}", gguf.tensors) };
    assert_eq!((one.bytes, two.bytes), (Some(12), Some(40)));
    let data = |tensor: &TensorInfo| bytes[usize::try_from(tensor.offset).expect("small")];
    assert_eq!((data(one), data(two)), (7, 9));
}

#[test]
fn small_numbers_of_every_width_are_read() {
    let numbers: &[(u32, &[u8], Value)] = &[
        (0, &[200], Value::Unsigned(200)),
        (1, &[200], Value::Signed(-56)),
        (2, &[1, 2], Value::Unsigned(513)),
        (3, &[255, 255], Value::Signed(-1)),
        (4, &[0, 0, 0, 128], Value::Unsigned(1 << 31)),
        (5, &[0, 0, 0, 128], Value::Signed(-(1 << 31))),
    ];
    for (kind, written, expected) in numbers {
        let mut bytes = b"GGUF\x02\0\0\0".to_vec();
        bytes.extend([0_u64, 1].map(u64::to_le_bytes).concat());
        text(&mut bytes, "k");
        bytes.extend(kind.to_le_bytes());
        bytes.extend(*written);
        bytes.resize(bytes.len() + 8, 0);
        assert_eq!(read(&bytes).expect("valid").metadata.get("k"), Some(expected), "type {kind}");
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = sample().bytes();
    // The last tensor's padding is no part of it.
    let needed = bytes.len() - 24;
    for length in 0..needed {
        let error = read(&bytes[..length]).expect_err("cut").to_string();
        assert!(!error.is_empty(), "{length}");
    }
    assert!(read(&bytes[..needed]).is_ok());
    let cut = read(&bytes[..needed - 1]).expect_err("cut").to_string();
    assert!(cut.contains("the data of tensor `two`") && cut.contains("39 are left"), "{cut}");
}

#[test]
fn any_changed_byte_is_read_or_refused() {
    let bytes = sample().bytes();
    for position in 0..bytes.len() {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut changed = bytes.clone();
            changed[position] = value;
            let _ = read(&changed);
        }
    }
}

#[test]
fn faults_say_what_and_where() {
    let (magic, counts) = (b"GGUF\x03\0\0\0".to_vec(), |tensors: u64, entries: u64| {
        [tensors, entries].map(u64::to_le_bytes).concat()
    });
    let entry = |kind: u32, rest: &[u8]| {
        let mut bytes = [magic.clone(), counts(0, 1)].concat();
        text(&mut bytes, "key");
        bytes.extend(kind.to_le_bytes());
        bytes.extend(rest);
        bytes.resize(bytes.len() + 64, 0);
        bytes
    };
    let many = [8_u32.to_le_bytes().to_vec(), u64::MAX.to_le_bytes().to_vec()].concat();
    let deep: Vec<u8> = (0..4)
        .flat_map(|_| [9_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec()].concat())
        .collect();
    let with = |key: &str, value| sample().set(key, value).bytes();
    for (bytes, said) in [
        (b"GG".to_vec(), "no GGUF file"),
        (b"GGML\x03\0\0\0".to_vec(), "no GGUF file"),
        (b"GGUF\x01\0\0\0".to_vec(), "version is 1"),
        (b"GGUF\0\0\0\x03".to_vec(), "big-endian"),
        (
            [magic.clone(), counts(u64::MAX, 0)].concat(),
            "the number of tensors at byte 8 claims 18446744073709551615",
        ),
        (
            [magic.clone(), counts(0, 100)].concat(),
            "the number of metadata entries at byte 24 needs 1300 bytes",
        ),
        (entry(13, &[]), "metadata `key` at byte 39 has the unknown type 13"),
        (entry(7, &[2]), "metadata `key` at byte 40 has 2 for a truth value"),
        (entry(9, &many), "metadata `key` at byte 43 claims 18446744073709551615"),
        (entry(9, &deep), "lists in lists"),
        (entry(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF]), "metadata `key` at byte 48 is not UTF-8"),
        (with(ALIGNMENT, Value::Unsigned(33)), "`general.alignment`"),
        (with(ALIGNMENT, Value::Unsigned(0)), "`general.alignment`"),
        (with(ALIGNMENT, Value::Text("x".to_owned())), "`general.alignment`"),
        (with(ALIGNMENT, Value::Unsigned(4096)), "the data of tensor `one` at byte 4096"),
        (sample().tensor("t", &[1 << 40, 1 << 40], TensorKind::F32, vec![]).bytes(), "`t`"),
        (
            sample().tensor("t", &[1 << 40], TensorKind::F32, vec![]).bytes(),
            "the data of tensor `t`",
        ),
        (
            sample().tensor("t", &[33], TensorKind::Q4_1, vec![]).bytes(),
            "rows of 33 values of Q4_1",
        ),
        (sample().tensor("t", &[], TensorKind::F32, vec![]).bytes(), "has 0 dimensions"),
    ] {
        let error = read(&bytes).expect_err(said).to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn an_unknown_type_is_read_by_its_number() {
    let bytes = sample().tensor("t", &[64], TensorKind(77), vec![1; 32]).bytes();
    let gguf = read(&bytes).expect("valid");
    let tensor = gguf.tensors.last().expect("three");
    assert_eq!((tensor.bytes, tensor.kind.to_string()), (None, "type 77".to_owned()));
}
