"""Words of posts, counted: Faust's word_count with an output. Nothing here knows of Ratchet but the URL."""

import os

import faust

KIND = os.environ.get("FAUST_KIND", "ratchet")
app = faust.App(
    os.environ["FAUST_APP"],
    broker=f"{KIND}://{os.environ['FAUST_BROKER']}",
    store="ratchet://" if KIND == "ratchet" else "memory://",
    topic_partitions=2,
)
posts = app.topic(f"{app.conf.id}-posts", value_type=str)
counted = app.topic(f"{app.conf.id}-counted")
counts = app.Table("counts", default=int)
seen = app.SetTable("seen")


@app.agent(posts)
async def split(stream):
    async for post in stream:
        for word in post.split():
            await count.send(key=word, value=word)


@app.agent(value_type=str)
async def count(words):
    async for word in words:
        counts[word] += 1
        seen[word].add(word[0])
        await counted.send(key=word, value=counts[word])


@app.page("/count/{word}")
@app.table_route(table=counts, match_info="word")
async def page(web, request, word):
    return web.json({word: counts[word]})


@app.task
async def report():
    print(f"a task sees {sum(counts.values())} words")


@app.task(on_leader=True)
async def lead():
    print("a task of the leader runs")


if __name__ == "__main__":
    app.main()
