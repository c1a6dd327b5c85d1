"""Tasks are made by rule: the same each time, with one answer, every claim in the corpus."""

import re

import pytest

from jaxrl_agents.agents.search.tasks import chains as chains_lib
from jaxrl_agents.agents.search.tasks import entity_graph, make_tasks, quote_verification
from jaxrl_agents.corpus import entities as domains


def all_chains(made):
  return [chain for each in made[1].values() for chain in each]


def all_items(made):
  return [
    (chain, level, item)
    for chain in all_chains(made)
    for level in chain.levels
    for item in level.items
  ]


def test_the_same_corpus_and_seed_give_the_same_tasks(made, remade):
  assert made[0].tasks == remade[0].tasks
  assert made[1] == remade[1]


def test_every_split_has_tasks_and_some_reach_a_further_level(made):
  tasks = made[0].tasks
  assert len(tasks["train"]) >= 100
  assert len(tasks["dev"]) >= 10
  assert len(tasks["test"]) >= 20
  further = [task for each in tasks.values() for task in each if task.facts["level"] > 0]
  assert len(further) >= 10
  ids = [task.id for each in tasks.values() for task in each]
  assert len(set(ids)) == len(ids)


def test_no_module_has_truths_in_two_splits(made):
  modules = {}
  for chain, _, item in all_items(made):
    if item.is_answer:
      modules.setdefault(item.extra["entity"].partition(":")[0], set()).add(chain.split)
  assert all(len(splits) == 1 for splits in modules.values())


def test_every_level_passes_verification(made):
  for chain in all_chains(made):
    for level in range(len(chain.levels)):
      assert quote_verification.failures(chain, level) == []


def test_quotes_stand_in_the_gold_chunks_of_the_corpus(made):
  texts = {chunk.id: chunk.text for chunk in made[0].chunks}
  for _, _, item in all_items(made):
    gold = [texts[chunk_id] for chunk_id in item.chunk_ids]
    for quote in (*item.item_quotes, *item.truth_quotes):
      assert any(quote in text for text in gold)
    assert item.item_quotes[0] in gold[0]


def test_distractors_are_other_chunks_that_lack_every_truth_of_their_chain(made):
  texts = {chunk.id: chunk.text for chunk in made[0].chunks}
  count = 0
  for chain in all_chains(made):
    truths = [level.truth for level in chain.levels]
    gold = {i for level in chain.levels for item in level.items for i in item.chunk_ids}
    for level in chain.levels:
      for distractor in level.distractors:
        count += 1
        assert distractor.text == texts[distractor.id]
        words = re.findall(r"\w+", distractor.text.lower())
        assert not {truth.lower() for truth in truths} & set(words)
      own = {i for item in level.items for i in item.chunk_ids}
      assert not own & {distractor.id for distractor in level.distractors}
      assert gold
  assert count > 200


def test_prompts_are_short_and_name_nothing_they_ask_for(made):
  for task in (task for each in made[0].tasks.values() for task in each):
    if task.facts["level"] == 0:
      assert len(task.prompt.split()) <= 90
    truth = re.escape(task.facts["truth"])
    assert not re.search(rf"(?<!\w){truth}(?!\w)", task.prompt, re.IGNORECASE)


def test_facts_of_a_task_are_those_of_all_levels_and_one_of_them_is_the_answer(made):
  for chain in all_chains(made):
    for level in range(len(chain.levels)):
      task = chains_lib.task(chain, level)
      assert len(task.facts["facts"]) == 3 * (level + 1)
      assert len(task.facts["clues"]) == 3 * (level + 1)
      final = [fact for fact in task.facts["facts"] if fact["is_final_answer"]]
      assert len(final) == 1
      assert final[0]["fact"] in chain.levels[level].clues
      texts = {chunk.id: chunk.text for chunk in made[0].chunks}
      for chunk_id in final[0]["answer_chunk_ids"]:
        assert chunk_id in final[0]["chunk_ids"]
        assert task.facts["truth"].lower() in " ".join(texts[chunk_id].split()).lower()
      assert final[0]["answer_chunk_ids"]


TELLS = re.compile(r"(\d+)\. (Routine|Method|Class|Exception|Module)(?: ([^:.]*))?(?:: (.*))?")


def parsed(chain, level):
  """The clues up to a level as (number, kind, [(phrase, numbers)], description)."""
  text = " ".join(each.clues for each in chain.levels[: level + 1])
  found = []
  for sentence in re.split(r"\.(?: (?=\d+\. [A-Z])|$)", text):
    if sentence:
      number, kind, ties, description = TELLS.fullmatch(sentence).groups()
      phrases = re.split(r" and (?=[a-z])", ties) if ties else []
      pairs = [re.fullmatch(r"(.*?) (\d+(?: and \d+)*)", phrase).groups() for phrase in phrases]
      ties = [(phrase, [int(n) for n in numbers.split(" and ")]) for phrase, numbers in pairs]
      found.append((int(number), kind.lower(), ties, description))
  return found


@pytest.fixture(scope="module")
def world(made):
  """(domain, {split: graph}) of the corpus of `made`."""
  domain = make_tasks.read_facts(made[0].documents)
  chunk_map = domains.ChunkMap(made[0].documents, made[0].chunks)
  return domain, {
    split: entity_graph.build(domain, chunk_map, split) for split in make_tasks.SPLITS
  }


def related(domain):
  """phrase -> set of (teller, referred), from the relations themselves."""
  pairs = {}
  for relation in domain.relations:
    forward, backward = domains.PHRASES[relation.kind]
    pairs.setdefault(forward.format("").strip(), set()).add((relation.source, relation.target))
    pairs.setdefault(backward.format("").strip(), set()).add((relation.target, relation.source))
  return pairs


def test_the_answer_is_the_only_entity_that_fits_what_the_prompt_says(made, world):
  """Solved by reading the prompt: every other entity contradicts a clue."""
  domain, graphs = world
  pairs = related(domain)
  for chain in all_chains(made):
    described = graphs[chain.split].described
    for level in range(len(chain.levels)):
      clues = parsed(chain, level)
      by_text = {each.clue: key for key, each in described.items()}
      known = {number: by_text[text] for number, _, _, text in clues if text}
      items = [item for each in chain.levels[: level + 1] for item in each.items]
      entities = {item.clue_quotes[0].partition(".")[0]: item.extra["entity"] for item in items}
      asked = int(chain.levels[level].question.split()[-1].rstrip("?"))
      truth = entities[str(asked)]
      known |= {n: entities[str(n)] for n, *_ in clues if n != asked}  # told before, or bridged to
      kind, ties, text = next((k, t, d) for n, k, t, d in clues if n == asked)
      fitting = {key for key, each in domain.entities.items() if each.kind == kind}
      if text:
        fitting &= {by_text[text]}
      for phrase, numbers in ties:
        for number in numbers:
          fitting = {key for key in fitting if (key, known[number]) in pairs[phrase]}
      for number, _, others, _ in clues:
        for phrase, numbers in others:
          if asked in numbers:
            fitting = {key for key in fitting if (known[number], key) in pairs[phrase]}
      assert fitting == {truth}


def test_test_tasks_are_worded_by_the_second_table(made, world):
  _, graphs = world
  words = {split: {each.clue for each in g.described.values()} for split, g in graphs.items()}
  assert words["train"] == words["dev"]
  clues = {item.clue for chain in made[1]["test"] for level in chain.levels for item in level.items}
  assert clues - {""} <= words["test"]
  assert len(clues & words["train"]) < len(clues) / 4


def test_no_two_entities_share_a_clue(world):
  for each in world[1].values():
    clues = [described.clue for described in each.described.values()]
    assert len(set(clues)) == len(clues)
