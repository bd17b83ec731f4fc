use super::*;

use proptest::prelude::*;
use serde_json::{Map, json};

const SPECIAL: &str = "<|end|>";
const ADDED: &str = "<think hard>";

fn tokenizer(pieces: &[String], decoder: &Value) -> Tokenizer {
    let vocabulary: Map<_, _> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), json!(id))).collect();
    let added = |id: usize, content: &str, special: bool| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special })
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": [added(pieces.len(), SPECIAL, true), added(pieces.len() + 1, ADDED, false)],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": decoder,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    Tokenizer::from_bytes(json.to_string()).expect("a tokenizer")
}

fn vocabulary(pieces: &[String], decoder: &Value) -> Arc<Vocabulary> {
    Arc::new(Vocabulary::new(tokenizer(pieces, decoder)).expect("a known decoder"))
}

/// All 256 bytes, and pieces that begin and end within characters.
fn byte_level_vocabulary() -> Arc<Vocabulary> {
    let mut written = [' '; 256];
    for (code, byte) in BYTES.iter().enumerate() {
        if let Some(byte) = byte {
            written[usize::from(*byte)] =
                char::from_u32(u32::try_from(code).expect("small")).expect("a character");
        }
    }
    let piece = |bytes: &[u8]| bytes.iter().map(|byte| written[usize::from(*byte)]).collect();
    let mut pieces: Vec<String> = (0..=255).map(|byte| piece(&[byte])).collect();
    for part in ["Hello", " wörld", "日本", "🤯!"] {
        pieces.push(piece(part.as_bytes()));
        pieces.push(piece(&part.as_bytes()[..part.len() - 1]));
        pieces.push(piece(&part.as_bytes()[1..]));
    }
    pieces.sort();
    pieces.dedup();
    vocabulary(
        &pieces,
        &json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true }),
    )
}

/// Pieces of text, and all 256 bytes as `<0x..>`.
fn fallback_vocabulary(decoders: &Value) -> Arc<Vocabulary> {
    let mut pieces: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    pieces.extend(["▁", "▁Hello", "▁▁x", "wörld", "日", "<0x4>", "<0xZZ>"].map(str::to_owned));
    vocabulary(&pieces, &json!({ "type": "Sequence", "decoders": decoders }))
}

fn llama_decoders() -> Value {
    json!([
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "ByteFallback" }, { "type": "Fuse" },
        { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
    ])
}

/// What the pieces make together; none of them may be empty.
fn streamed(vocabulary: &Arc<Vocabulary>, tokens: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(vocabulary));
    let mut pieces = Vec::new();
    for token in tokens {
        pieces.extend(detokenizer.push(*token));
        assert!(detokenizer.pending.len() <= 3, "{:?}", detokenizer.pending);
    }
    pieces.extend(detokenizer.finish());
    assert_eq!(detokenizer.finish(), None);
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
    pieces.concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any tokens at all, and ids that are none.
    #[test]
    fn bytes_stream_as_they_decode(tokens in prop::collection::vec(0_u32..280, 0..60)) {
        let vocabulary = byte_level_vocabulary();
        prop_assert_eq!(streamed(&vocabulary, &tokens), vocabulary.decode(&tokens));
    }

    /// Every byte of a text as a token of its own: nothing comes before its character is whole.
    #[test]
    fn half_characters_wait(text in "\\PC{0,12}") {
        let vocabulary = byte_level_vocabulary();
        let mut detokenizer = Detokenizer::new(Arc::clone(&vocabulary));
        let mut got = String::new();
        for byte in text.bytes() {
            let character = BYTES.iter().position(|known| *known == Some(byte)).expect("a byte");
            let piece = char::from_u32(u32::try_from(character).expect("small")).expect("a character");
            let token = vocabulary.tokenizer.token_to_id(&piece.to_string()).expect("a token");
            if let Some(piece) = detokenizer.push(token) {
                got.push_str(&piece);
                prop_assert!(text.starts_with(&got));
            }
        }
        prop_assert_eq!(detokenizer.finish(), None);
        prop_assert_eq!(got, text);
    }

    /// Byte tokens that spell text, between pieces: as the library decodes them.
    #[test]
    fn fallback_streams_as_it_decodes(parts in prop::collection::vec((0_u32..9, "\\PC{0,3}"), 0..12)) {
        for decoders in [llama_decoders(), json!([llama_decoders()[0], { "type": "ByteFallback" }, { "type": "Fuse" }])] {
            let vocabulary = fallback_vocabulary(&decoders);
            let tokens: Vec<u32> = parts
                .iter()
                .flat_map(|(piece, text)| text.bytes().map(u32::from).chain([256 + piece]))
                .collect();
            prop_assert_eq!(streamed(&vocabulary, &tokens), vocabulary.decode(&tokens));
        }
    }

    #[test]
    fn any_fallback_tokens_are_text(tokens in prop::collection::vec(0_u32..270, 0..60)) {
        streamed(&fallback_vocabulary(&llama_decoders()), &tokens);
    }

    #[test]
    fn words_and_marks_stream_as_they_decode(tokens in prop::collection::vec(0_u32..7, 0..12)) {
        let pieces = ["▁a", "b", "▁▁", "c▁", "日"].map(str::to_owned);
        for scheme in ["always", "never", "first"] {
            let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true });
            for decoder in [&metaspace, &Value::Null] {
                let vocabulary = vocabulary(&pieces, decoder);
                prop_assert_eq!(streamed(&vocabulary, &tokens), vocabulary.decode(&tokens));
            }
        }
    }
}

#[test]
fn an_emoji_comes_whole() {
    let vocabulary = fallback_vocabulary(&llama_decoders());
    let mut detokenizer = Detokenizer::new(vocabulary);
    // "▁Hello", the four bytes of an emoji, two of another, then "wörld".
    let pushed: Vec<Option<String>> = [257, 0xF0, 0x9F, 0xA4, 0xAF, 0xF0, 0x9F, 259]
        .into_iter()
        .map(|token| detokenizer.push(token))
        .collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        pushed,
        [text("Hello"), None, None, None, text("🤯"), None, None, text("\u{FFFD}wörld")]
    );
    assert_eq!((detokenizer.push(0xE6), detokenizer.finish()), (None, text("\u{FFFD}")));
}

#[test]
fn special_tokens_are_no_text() {
    let vocabulary = byte_level_vocabulary();
    let id = |token: &str| vocabulary.tokenizer.token_to_id(token).expect("a token");
    let mut detokenizer = Detokenizer::new(Arc::clone(&vocabulary));
    assert_eq!(detokenizer.push(id(SPECIAL)), None);
    assert_eq!(detokenizer.push(id(ADDED)).as_deref(), Some(ADDED));
    assert_eq!(detokenizer.push(u32::MAX), None);
}

#[test]
fn unknown_decoders_are_refused_by_name() {
    for (decoder, named) in [
        (json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }), "WordPiece"),
        (
            json!({ "type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": false }),
            "CTC",
        ),
        (json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }), "Strip"),
        (
            json!({ "type": "Sequence", "decoders": [{ "type": "Fuse" },
                { "type": "Strip", "content": " ", "start": 0, "stop": 1 }] }),
            "stop",
        ),
        (json!({ "type": "Replace", "pattern": { "Regex": "a+" }, "content": "" }), "Regex"),
    ] {
        let refused = Vocabulary::new(tokenizer(&["a".to_owned()], &decoder)).err().expect(named);
        assert!(refused.contains(named), "{refused}");
    }
}

#[test]
fn tokens_have_bytes_wherever_they_stand() {
    let byte_level = byte_level_vocabulary();
    for byte in 0..=255_u8 {
        let written = byte_level.tokenizer.id_to_token(u32::from(byte)).expect("a token");
        assert_eq!(byte_level.bytes(u32::from(byte)), Some(super::byte_level(written)));
    }
    let fallback = fallback_vocabulary(&llama_decoders());
    for (vocabulary, token, bytes) in [
        (&byte_level, SPECIAL, None),
        (&byte_level, ADDED, Some(ADDED.as_bytes())),
        (&fallback, "<0xE6>", Some(&[0xE6])),
        (&fallback, "<0x4>", Some(b"<0x4>")),
        (&fallback, "▁Hello", Some(b" Hello")),
        (&fallback, "日", Some("日".as_bytes())),
    ] {
        let id = vocabulary.tokenizer.token_to_id(token).expect("a token");
        assert_eq!(vocabulary.bytes(id).as_deref(), bytes, "{token}");
    }
    assert_eq!(fallback.bytes(u32::MAX), None);
}
