//! Finds the span of a message's tool calls: everything that the template writes for them, including markup.
//!
//! The message is rendered with a mark as its content instead of the calls. There, the text before the mark is the
//! header (and reasoning), and the text after it is the end of the turn. In the plain text, the calls stand between the
//! two.
use crate::chat::{Message, Scene, Span, LEAF_TOOL_CALLS};
use crate::error::{Error, Result};
use crate::marks::Marks;
use crate::spans::span;
use serde_json::Value;

/// The number of bytes before the mark by which the headers of contents and of calls may differ: a space, or the name
/// of a channel.
const MAX_OTHER_HEADER_BYTES: usize = 64;
const MAX_ADDED_TOKEN_BYTES: usize = 48;

/// `names`: where each call's name stands. `others`: spans of contents and reasoning.
#[allow(clippy::too_many_arguments)]
pub(crate) fn region(
    scene: &Scene,
    is_added: &dyn Fn(&str) -> bool,
    marks: Marks,
    messages: &[Message],
    i: usize,
    names: &[Vec<(usize, usize)>],
    others: &[Span],
    text: &str,
) -> Result<Span> {
    let cannot = || Error::precondition(format!("the header before the tool calls of message {i} was not found"));
    // First with the messages after it, since templates treat the last turn differently; else without them, since a
    // template may insist on the order of roles.
    let with_rest = around(scene, marks, messages, i, text, is_added);
    let turn = with_rest.or_else(|| {
        let mut until_here = messages[..=i].to_vec();
        if !others.iter().any(|other| other.message == i as u64) {
            until_here[i].shift_remove("content"); // the template left it out
        }
        let shorter = scene.render(&until_here, None).ok()?;
        let (begin, end) = around(scene, marks, &until_here, i, &shorter, is_added)?;
        let same = |at: usize| text.as_bytes().get(..at) == shorter.as_bytes().get(..at);
        same(begin).then(|| (begin, end.filter(|end| same(*end))))
    });
    let (mut begin, end) = turn.ok_or_else(cannot)?;

    let mut last = begin;
    for found in names {
        let (_, name_end) = found.iter().find(|(name, _)| *name >= last).ok_or_else(cannot)?;
        last = *name_end;
    }
    let first = names[0].iter().find(|(name, _)| *name >= begin).map_or(last, |(name, _)| *name);
    let mut end = end.filter(|end| *end >= last).unwrap_or(last);
    for other in others {
        let (other_begin, other_end) = (other.begin as usize, other.end as usize);
        if other_end <= first {
            begin = begin.max(other_end);
        } else if other_begin >= last {
            end = end.min(other_begin);
        } else {
            return Err(Error::precondition(format!(
                "message {} stands among the tool calls of message {i}",
                other.message
            )));
        }
    }
    Ok(span(LEAF_TOOL_CALLS, i, begin, end))
}

/// The position after the turn's header and the end of the turn, or None if the two renderings do not fit together.
fn around(
    scene: &Scene,
    marks: Marks,
    messages: &[Message],
    i: usize,
    text: &str,
    is_added: &dyn Fn(&str) -> bool,
) -> Option<(usize, Option<usize>)> {
    let mut messages = messages.to_vec();
    let (mark, end_of_previous) = marks.pair(0).ok()?;
    messages[i].shift_remove("tool_calls");
    messages[i].insert("content".to_owned(), Value::String(mark.to_string()));
    let previous = i.checked_sub(1).and_then(|previous| messages[previous].get_mut("content"));
    if let Some(Value::String(content)) = previous {
        content.insert(content.trim_end().len(), end_of_previous);
    }
    let unmarked = marks.take_out(&scene.render(&messages, None).ok()?);
    let place = |closes: bool| {
        let mut places = unmarked.places.iter().filter(|(_, _, other)| *other == closes).map(|(at, _, _)| *at);
        places.next().filter(|_| places.next().is_none())
    };
    let header_end = place(false)?;
    let (before, behind) = unmarked.text.split_at(header_end);

    let mut begin = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    begin = outside_token(text, begin, is_added);
    // Headers may differ a little, but never before the end of the previous message.
    let is_near = header_end - begin <= MAX_OTHER_HEADER_BYTES && place(true).is_some_and(|previous| begin >= previous);
    if begin != header_end && !is_near {
        return None;
    }
    let common = behind.bytes().rev().zip(text.bytes().rev()).take_while(|(a, b)| a == b).count();
    let end = outside_token(text, text.len() - common, is_added);
    let is_near = behind.len() - common <= MAX_OTHER_HEADER_BYTES && end > begin;
    Some((begin, is_near.then_some(end)))
}

/// The position itself, or the start of the added token that it would cut.
fn outside_token(text: &str, position: usize, is_added: &dyn Fn(&str) -> bool) -> usize {
    let boundaries = |begin: usize, end: usize| (begin..=end).filter(|at| text.is_char_boundary(*at));
    let earliest = position.saturating_sub(MAX_ADDED_TOKEN_BYTES);
    for begin in boundaries(earliest, position.saturating_sub(1)) {
        let latest = text.len().min(begin + MAX_ADDED_TOKEN_BYTES);
        if boundaries(position + 1, latest).any(|end| is_added(&text[begin..end])) && begin < position {
            return begin;
        }
    }
    boundaries(earliest, position).last().unwrap_or(position)
}
