"""The shop's web app, which never waits for a mail server. Serve it with ``uvicorn app:app``."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from shop import Item, NoSuchOrder, Order, db, pay
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

app = FastAPI(title="shop")


class NewOrder(BaseModel):
    email: str
    item: str


class Address(BaseModel):
    email: str


def shown(order: Order) -> dict[str, int | str | None]:
    return {"id": order.id, "email": order.email, "status": order.status, "invoice": order.invoice}


@app.post("/orders", status_code=201)
def place_order(new: NewOrder) -> dict[str, int | str | None]:
    with Session(db) as session, session.begin():
        item = session.get(Item, new.item)
        if item is None:
            raise HTTPException(404, f"we do not sell {new.item}")
        order = Order(email=new.email, item=item.name, cents=item.cents)
        session.add(order)
        session.flush()
        return shown(order)


@app.post("/orders/{order_id}/pay")
def pay_order(order_id: int) -> dict[str, int | str | None]:
    try:
        with Session(db) as session, session.begin():
            return shown(pay(session, order_id))  # the transaction commits before the customer gets the answer
    except NoSuchOrder as error:
        raise HTTPException(404, str(error)) from None
    except IntegrityError:
        raise HTTPException(409, "sold out") from None


@app.put("/orders/{order_id}/email")
def mend_address(order_id: int, address: Address) -> dict[str, int | str | None]:
    with Session(db) as session, session.begin():
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, f"there is no order {order_id}")
        order.email = address.email
        return shown(order)


@app.get("/orders/{order_id}")
def show_order(order_id: int) -> dict[str, int | str | None]:
    with Session(db) as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, f"there is no order {order_id}")
        return shown(order)
