"""What a page of `--html` says, read from its file."""

import html
import re


def tables(page):
    """Head and rows of each table under a title, by the first word of the title."""
    found = {}
    for title, table in re.findall(r'<h2>(\w+)[^<]*</h2><div class="rows"[^>]*>(.*?)</div>', page.read_text(), re.S):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)
        found[title] = [tuple(map(plain, re.findall(r"<t[dh]>(.*?)</t[dh]>", row, re.S))) for row in rows]
    return found


def windows(page):
    """The text of each window by its title."""
    found = re.findall(r'<article[^>]*><h3>(.*?)</h3>.*?<div dir="auto"[^>]*>(.*?)</div>', page.read_text(), re.S)
    return {plain(title): plain(text) for title, text in found}


def plain(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", markup))
