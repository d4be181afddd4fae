//! Finds the bytes of a rendered conversation that come from messages of the assistant.
//!
//! A template with `generation` blocks marks them itself. Any other template renders the conversation again with marks
//! around the leaves of assistant messages. If the text without its marks is the same as before, the marks stand where
//! the leaves are. A leaf that is left out, such as the reasoning of earlier turns, has no span; one that is changed
//! cannot be proven and is refused.
use crate::chat::{Message, Scene, Span, LEAF_CONTENT, LEAF_GENERATION, LEAF_REASONING, LEAF_TOOL_CALLS, REASONING};
use crate::error::{Error, ErrorKind, Result};
use crate::marks::{Marks, Unmarked};
use crate::python::is_space;
use crate::tool_calls;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most messages that are rendered, all renderings together, to find the tool calls of one conversation: each message
/// with calls needs a rendering of all messages.
const MAX_RENDERED: usize = 4 << 20;

const INSTEAD: &str =
    "name one of the slot templates instead (data.template = \"chatml\", \"llama3\", …), or a template with \
                       {% generation %} blocks";

/// A text of an assistant message that is searched for in the rendered text.
pub(crate) struct Leaf {
    pub(crate) message: usize,
    pub(crate) kind: u32,
    place: Place,
    text: String,
}

#[derive(Clone, Copy)]
enum Place {
    Content,
    Part(usize),
    Reasoning,
    CallName(usize),
}

/// The places of marks in a leaf: around it; inside its outer white space, for templates that trim; or also at its
/// think tags, for templates that split there.
#[derive(Clone, Copy, PartialEq)]
enum Marking {
    Whole,
    Trimmed,
    Thinking,
}

/// A piece [begin, end) of a leaf's text, and its place in the rendered text.
struct Piece {
    leaf: usize,
    begin: usize,
    end: usize,
    found: Vec<(usize, usize)>,
}

pub(crate) fn find(
    scene: &Scene,
    is_added: &dyn Fn(&str) -> bool,
    messages: &[Message],
    text: &str,
) -> Result<Vec<Span>> {
    let json = [scene.chat.messages_json, scene.chat.tools_json, scene.chat.variables_json];
    let mut texts = vec![text, scene.template.source.as_str()];
    texts.extend(json);
    let prepared: String = messages.iter().map(|message| Value::Object(message.clone()).to_string()).collect();
    texts.push(&prepared);
    let marks = Marks::unused_in(&texts)?;
    if scene.template.has_generation {
        return of_generation_blocks(scene, marks, messages, text);
    }
    let leaves = leaves(messages);
    if leaves.is_empty() {
        return Ok(Vec::new());
    }
    let pieces = prove(scene, marks, messages, &leaves, text)?;
    to_spans(scene, is_added, marks, messages, &leaves, pieces, text)
}

/// Finds the leaves by the first way of marking that the template leaves intact.
fn prove(scene: &Scene, marks: Marks, messages: &[Message], leaves: &[Leaf], text: &str) -> Result<Vec<Piece>> {
    let thinking = leaves.iter().any(|leaf| leaf.text.contains("<think>") || leaf.text.contains("</think>"));
    let mut refused = None;
    for marking in [Marking::Whole, Marking::Trimmed, Marking::Thinking] {
        if marking == Marking::Thinking && !thinking {
            break;
        }
        match of_leaves(scene, marks, messages, leaves, marking, text) {
            Ok(pieces) => return Ok(pieces),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| Error::internal("no way to mark a conversation")))
}

fn refuse(scene: &Scene, why: &str) -> Error {
    Error::precondition(format!("{}: {why}, so what to train cannot be proven; {INSTEAD}", scene.template.file))
}

// --- generation -----------------------------------------------------------------------------------------------------

fn of_generation_blocks(scene: &Scene, marks: Marks, messages: &[Message], text: &str) -> Result<Vec<Span>> {
    let marked = marks.take_out(&scene.render(messages, Some(marks.pair(0)?))?);
    let blocks = marked.ranges(0).filter(|_| marked.text == text);
    let Some(blocks) = blocks else {
        return Err(refuse(scene, "the template changes the text of its {% generation %} blocks"));
    };
    let assistants: Vec<usize> = (0..messages.len()).filter(|i| is_assistant(&messages[*i])).collect();
    let owners =
        if blocks.len() == assistants.len() { assistants } else { owners(scene, marks, messages, &blocks, text)? };
    let spans = blocks.into_iter().zip(owners).filter(|((begin, end), _)| begin < end);
    Ok(spans.map(|((begin, end), message)| span(LEAF_GENERATION, message, begin, end)).collect())
}

/// The message of each block, where a template has more or fewer blocks than messages: a block belongs to the message
/// whose leaf it contains; one without a leaf, to the last leaf before it, unless another message stands between.
fn owners(
    scene: &Scene,
    marks: Marks,
    messages: &[Message],
    blocks: &[(usize, usize)],
    text: &str,
) -> Result<Vec<usize>> {
    let leaves = leaves(messages);
    let pieces = prove(scene, marks, messages, &leaves, text)?;
    let mut places: Vec<((usize, usize), usize)> = Vec::new();
    for piece in pieces {
        places.extend(piece.found.iter().map(|range| (*range, leaves[piece.leaf].message)));
    }
    places.sort();
    let mut owners = Vec::new();
    for (begin, end) in blocks {
        // The places do not overlap, so their ends are in order too.
        let first_at = |byte: &usize| places.partition_point(|((b, _), _)| b < byte);
        let inside = places.get(first_at(begin)).filter(|((_, e), _)| e <= end);
        let before = places[..places.partition_point(|((_, e), _)| e <= begin)].last();
        let behind = places.get(first_at(end));
        let owner = inside.or(match (before, behind) {
            (Some(before), Some(behind))
                if stands_between(messages, (before.1, behind.1), &text[before.0 .1..*begin]) =>
            {
                Some(behind)
            }
            (before, behind) => before.or(behind),
        });
        owners.push(owner.map(|(_, message)| *message).ok_or_else(|| {
            refuse(scene, "a {% generation %} block of the template belongs to no message of the assistant")
        })?);
    }
    Ok(owners)
}

/// True if a message between two others, such as one of the user, has its content in `text`.
fn stands_between(messages: &[Message], (first, last): (usize, usize), text: &str) -> bool {
    let contents = messages[first..last].iter().filter(|message| !is_assistant(message)).filter_map(|message| {
        message.get("content").and_then(Value::as_str).map(str::trim).filter(|content| !content.is_empty())
    });
    contents.into_iter().any(|content| text.contains(content))
}

// --- leaves ---------------------------------------------------------------------------------------------------------

pub(crate) fn is_assistant(message: &Message) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

pub(crate) fn span(leaf: u32, message: usize, begin: usize, end: usize) -> Span {
    Span { leaf, message: message as u64, begin: begin as u64, end: end as u64 }
}

fn leaves(messages: &[Message]) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for (i, message) in messages.iter().enumerate().filter(|(_, message)| is_assistant(message)) {
        let mut add = |kind, place, value: Option<&Value>| {
            // White space alone cannot be distinguished from the template's own.
            if let Some(text) = value.and_then(Value::as_str).filter(|text| !text.chars().all(is_space)) {
                leaves.push(Leaf { message: i, kind, place, text: text.to_owned() });
            }
        };
        add(LEAF_REASONING, Place::Reasoning, message.get(REASONING[0]));
        match message.get("content") {
            Some(Value::Array(parts)) => {
                for (j, part) in parts.iter().enumerate() {
                    add(LEAF_CONTENT, Place::Part(j), part.get("text"));
                }
            }
            content => add(LEAF_CONTENT, Place::Content, content),
        }
        for (j, call) in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate() {
            add(LEAF_TOOL_CALLS, Place::CallName(j), call.get("function").unwrap_or(call).get("name"));
        }
    }
    leaves
}

/// The texts of a message at a leaf's place; reasoning has several names.
fn texts_at<'a>(message: &'a mut Message, place: Place, text: &str) -> Vec<&'a mut Value> {
    match place {
        Place::Content => message.get_mut("content").into_iter().collect(),
        Place::Part(j) => {
            message.get_mut("content").and_then(|parts| parts.get_mut(j)?.get_mut("text")).into_iter().collect()
        }
        Place::Reasoning => message
            .iter_mut()
            .filter(|(name, value)| REASONING.contains(&name.as_str()) && value.as_str() == Some(text))
            .map(|(_, value)| value)
            .collect(),
        Place::CallName(j) => {
            let call = message.get_mut("tool_calls").and_then(|calls| calls.get_mut(j));
            let object =
                call.and_then(
                    |call| if call.get("function").is_some() { call.get_mut("function") } else { Some(call) },
                );
            object.and_then(|object| object.get_mut("name")).into_iter().collect()
        }
    }
}

fn pieces_of(leaf: usize, text: &str, marking: Marking) -> Vec<Piece> {
    let mut bounds = vec![(0, text.len())];
    if marking == Marking::Thinking {
        bounds.clear();
        let mut begin = 0;
        while let Some((at, tag)) =
            ["<think>", "</think>"].iter().filter_map(|tag| Some((text[begin..].find(tag)?, tag))).min()
        {
            bounds.push((begin, begin + at));
            begin += at + tag.len();
        }
        bounds.push((begin, text.len()));
    }
    if marking != Marking::Whole {
        for (begin, end) in &mut bounds {
            let piece = &text[*begin..*end];
            let trimmed = piece.trim_start_matches(is_space);
            *begin += piece.len() - trimmed.len();
            *end = *begin + trimmed.trim_end_matches(is_space).len();
        }
    }
    let bounds = bounds.into_iter().filter(|(begin, end)| begin < end);
    bounds.map(|(begin, end)| Piece { leaf, begin, end, found: Vec::new() }).collect()
}

/// Renders with marks around all pieces, and says where each stands; an error if one cannot be proven.
fn of_leaves(
    scene: &Scene,
    marks: Marks,
    messages: &[Message],
    leaves: &[Leaf],
    marking: Marking,
    text: &str,
) -> Result<Vec<Piece>> {
    let mut marked_messages = messages.to_vec();
    let mut pieces = Vec::new();
    for (i, leaf) in leaves.iter().enumerate() {
        let mine = pieces_of(i, &leaf.text, marking);
        let mut marked = leaf.text.clone();
        for (j, piece) in mine.iter().enumerate().rev() {
            let (open, close) = marks.pair(pieces.len() + j)?;
            marked.insert(piece.end, close);
            marked.insert(piece.begin, open);
        }
        pieces.extend(mine);
        for value in texts_at(&mut marked_messages[leaf.message], leaf.place, &leaf.text) {
            *value = Value::String(marked.clone());
        }
    }
    let unmarked = match scene.render(&marked_messages, None) {
        Ok(marked) => marks.take_out(&marked),
        Err(error) => return Err(refuse(scene, &format!("the template fails on marked messages ({error})"))),
    };
    let mut claimed = vec![];
    let ranges = unmarked.all_ranges(pieces.len());
    for (piece, ranges) in pieces.iter_mut().zip(ranges) {
        let leaf = &leaves[piece.leaf];
        match found(&unmarked, ranges, &leaf.text[piece.begin..piece.end], leaf.kind == LEAF_TOOL_CALLS) {
            Some(found) => piece.found = found,
            None => return Err(changed(scene, leaf)),
        }
        claimed.extend(piece.found.iter().map(|range| (*range, piece.leaf)));
    }
    claimed.sort();
    if let Some(two) = claimed.windows(2).find(|two| two[0].0 .1 > two[1].0 .0) {
        return Err(changed(scene, &leaves[two[1].1]));
    }
    if unmarked.text != text {
        return Err(differs(scene, leaves, &pieces, &unmarked.text, text));
    }
    Ok(pieces)
}

/// The places where a piece stands unchanged: none or one; with `many`, any number. `ranges`: those of its marks.
fn found(
    unmarked: &Unmarked,
    ranges: Option<Vec<(usize, usize)>>,
    piece: &str,
    many: bool,
) -> Option<Vec<(usize, usize)>> {
    let ranges = ranges?;
    let exact = ranges.iter().all(|(begin, end)| &unmarked.text[*begin..*end] == piece);
    (exact && (many || ranges.len() <= 1)).then_some(ranges)
}

fn changed(scene: &Scene, leaf: &Leaf) -> Error {
    refuse(scene, &format!("the template trims, splits, repeats or rewrites {}", name_of(leaf)))
}

/// Blames the last leaf before the first difference, which is the likely cause.
fn differs(scene: &Scene, leaves: &[Leaf], pieces: &[Piece], marked: &str, text: &str) -> Error {
    let at = marked.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    let near = pieces.iter().filter(|piece| piece.found.first().is_some_and(|(begin, _)| *begin <= at)).last();
    changed(scene, &leaves[near.or(pieces.first()).map_or(0, |piece| piece.leaf)])
}

fn name_of(leaf: &Leaf) -> String {
    let what = match leaf.kind {
        LEAF_REASONING => "reasoning",
        LEAF_TOOL_CALLS => "tool calls",
        _ => "content",
    };
    format!("the {what} of message {}", leaf.message)
}

// --- spans ----------------------------------------------------------------------------------------------------------

fn to_spans(
    scene: &Scene,
    is_added: &dyn Fn(&str) -> bool,
    marks: Marks,
    messages: &[Message],
    leaves: &[Leaf],
    pieces: Vec<Piece>,
    text: &str,
) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    let mut of_leaves: Vec<Vec<&Piece>> = vec![Vec::new(); leaves.len()];
    let mut names_of: BTreeMap<usize, Vec<Vec<(usize, usize)>>> = BTreeMap::new(); // by message
    for piece in pieces.iter().filter(|piece| !piece.found.is_empty()) {
        let leaf = &leaves[piece.leaf];
        if leaf.kind == LEAF_TOOL_CALLS {
            names_of.entry(leaf.message).or_default().push(piece.found.clone());
        } else {
            of_leaves[piece.leaf].push(piece);
        }
    }
    for (leaf, mine) in leaves.iter().zip(&of_leaves) {
        join_pieces(leaf, mine, text, &mut spans);
    }
    spans.sort_by_key(|span| span.begin);
    if let Some(two) = spans.windows(2).find(|two| two[0].end > two[1].begin) {
        return Err(refuse(scene, &format!("texts of message {} overlap", two[1].message)));
    }
    if names_of.len().saturating_mul(messages.len()) > MAX_RENDERED {
        let (num_calling, num_messages) = (names_of.len(), messages.len());
        return Err(refuse(
            scene,
            &format!(
                "{num_calling} of {num_messages} messages have tool calls, and finding those of one takes a rendering \
                 of all messages; the limit is {MAX_RENDERED} rendered messages"
            ),
        ));
    }
    for (i, names) in names_of {
        let region = tool_calls::region(scene, is_added, marks, messages, i, &names, &spans, text);
        let region = region.map_err(|error| match error.kind {
            ErrorKind::FailedPrecondition => refuse(scene, &error.message),
            _ => error,
        })?;
        spans.push(region);
        spans.sort_by_key(|span| span.begin);
    }
    Ok(spans)
}

/// Joins pieces if the rendered text between them is that of the leaf (mostly tags), and adds tags at the leaf's ends.
fn join_pieces(leaf: &Leaf, pieces: &[&Piece], text: &str, spans: &mut Vec<Span>) {
    let mut joined: Vec<((usize, usize), (usize, usize))> = Vec::new(); // in the text, in the leaf
    for piece in pieces {
        let (begin, end) = piece.found[0];
        match joined.last_mut() {
            Some((range, of_leaf))
                if text.get(range.1..begin) == leaf.text.get(of_leaf.1..piece.begin) && range.1 <= begin =>
            {
                range.1 = end;
                of_leaf.1 = piece.end;
            }
            _ => joined.push(((begin, end), (piece.begin, piece.end))),
        }
    }
    let last = joined.len().saturating_sub(1);
    for (i, ((mut begin, mut end), of_leaf)) in joined.into_iter().enumerate() {
        let before = leaf.text[..of_leaf.0].trim_start_matches(is_space);
        if i == 0 && text[..begin].ends_with(before) {
            begin -= before.len();
        }
        let behind = leaf.text[of_leaf.1..].trim_end_matches(is_space);
        if i == last && text[end..].starts_with(behind) {
            end += behind.len();
        }
        spans.push(span(leaf.kind, leaf.message, begin, end));
    }
}
